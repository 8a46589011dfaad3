-- For wrk: sends the body in $BENCH_BODY with the headers in $BENCH_HEADERS, one per line; prints what it saw as JSON.
local file = assert(io.open(os.getenv("BENCH_BODY"), "rb"))
wrk.method = "POST"
wrk.body = file:read("*a")
file:close()
for line in os.getenv("BENCH_HEADERS"):gmatch("[^\n]+") do
  local name, value = line:match("^(.-): (.*)$")
  wrk.headers[name] = value
end

function done(summary, latency, requests)
  local errors = summary.errors
  print(string.format(
    'BENCH {"requests":%d,"duration_us":%d,"bytes":%d,"p50_us":%d,"p99_us":%d,"mean_us":%.1f,"failed":%d}',
    summary.requests, summary.duration, summary.bytes, latency:percentile(50), latency:percentile(99),
    latency.mean, errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
