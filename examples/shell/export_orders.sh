#!/usr/bin/env bash
# Exports the orders of one day from the shop's database to a CSV file.
# Environment variables say where the database is, which day is wanted, and where the file goes.
set -euo pipefail

export PGHOST=$shop_hostname PGPORT=${shop_port:-5432} PGDATABASE=$shop_database
export PGUSER=$shop_username PGPASSWORD=$shop_password

psql --no-psqlrc --quiet --no-password --set ON_ERROR_STOP=1 --set day="$dataid" > "$orders_location/orders.csv" <<'SQL'
COPY (SELECT order_id, customer, amount FROM orders WHERE day = :'day' ORDER BY order_id) TO STDOUT (FORMAT csv, HEADER)
SQL
echo "exported $(($(wc -l < "$orders_location/orders.csv") - 1)) orders of $dataid as $PGUSER"
