SELECT * FROM weekly
