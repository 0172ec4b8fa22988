"""Pipeline schedules as action tables, and the timeline that prices them."""
