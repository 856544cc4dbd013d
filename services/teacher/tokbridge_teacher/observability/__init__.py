"""A service as seen from outside: metrics, request log, traces. Hears of requests; decides nothing about them."""
