-- Move the deadlines of reservations that are still held.
-- KEYS sorted set of deadlines; ARGV score ('' = only look), member...
-- returns one character per member: '1' held, '0' had lapsed
local outcome = {}
-- A server out of memory refuses ZADD, unless the script has written before: so it removes nothing first.
-- This one only replaces a score, and without it what is being handled would go to another.
if ARGV[1] ~= '' then
    redis.call('ZREMRANGEBYRANK', KEYS[1], 1, 0)
end
for i = 2, #ARGV do
    local held = redis.call('ZSCORE', KEYS[1], ARGV[i])
    if held and ARGV[1] ~= '' then
        redis.call('ZADD', KEYS[1], 'XX', ARGV[1], ARGV[i])
    end
    outcome[#outcome + 1] = held and '1' or '0'
end
return table.concat(outcome)
