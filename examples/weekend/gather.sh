#!/bin/bash
# Puts the rows of several tables into one:  gather.sh TARGET TABLE...
set -eu

target="${1}_location"
shift
for table in "$@"; do
    source="${table}_location"
    cat "${!source}/rows.csv"
done > "${!target}/rows.csv"
