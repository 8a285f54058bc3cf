-- Totals of one day, a row for each customer. :dataid and the job's parameters are bound by name.
SELECT
    :dataid AS day,
    customer,
    count(*) AS orders,
    count_if(days_late > 0) AS late,
    sum(amount) AS total
FROM orders
GROUP BY customer
HAVING sum(amount) >= :least
