-- The source database: customers, with NULLs, accents, quotes, line ends and gaps in their ids.
CREATE TABLE customers (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    email text,
    balance numeric(12, 2) NOT NULL,
    born date,
    changed timestamptz NOT NULL,
    note text
);
INSERT INTO customers
SELECT
    i * 3,
    (ARRAY['Ada', 'Grâce', 'O''Neil', '山田', E'two\nlines', 'Edsger "E" D.'])[1 + i % 6],
    CASE WHEN i % 7 > 0 THEN format('c%s@example.com', i) END,
    (i * 7919 % 2000000 - 1000000) / 100.0,
    CASE WHEN i % 11 > 0 THEN DATE '1940-01-01' + (i % 25000)::int END,
    TIMESTAMPTZ '2020-01-01 00:00:00.123456+00' + i * INTERVAL '61 seconds',
    CASE i % 5 WHEN 0 THEN '' WHEN 1 THEN NULL ELSE repeat('x', (i % 40)::int) END
FROM generate_series(1::bigint, :rows) AS i;
