-- Totals of one day, one row for each customer. dataflowd binds :dataid and the job's parameters by name.
SELECT
    :dataid AS day,
    customer,
    count(*) AS orders,
    count_if(days_late > 0) AS late,
    sum(amount) AS total
FROM orders
GROUP BY customer
HAVING sum(amount) >= :least
