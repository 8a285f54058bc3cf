-- Totals of one month, one row for each customer, from the totals of all its days.
SELECT
    :dataid AS month,
    customer,
    count(DISTINCT day) AS days,
    sum(orders) AS orders,
    sum(late) AS late,
    sum(total) AS total
FROM daily_totals
GROUP BY customer
