#!/bin/bash
# Fetches one table of the day from the warehouse:  load.sh TABLE
# An old script: environment variables say where the warehouse is and where the table goes.
set -eu

location="${1}_location"
if ! exec 3<>"/dev/tcp/$param_host/$param_port"; then
    echo "cannot reach the warehouse at $param_host:$param_port" >&2
    exit 69 # EX_UNAVAILABLE
fi
echo "$1 $dataid" >&3
cat <&3 > "${!location}/rows.csv"
