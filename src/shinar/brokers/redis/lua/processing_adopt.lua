-- A deadline for what consumers without deadlines hold, so that the sweep returns it once they are dead.
-- KEYS processing, deadlines
-- ARGV deadline score, token stem (24 hex)
-- returns how many got one
local known = {}
for _, member in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    local raw = string.sub(member, 34)
    known[raw] = (known[raw] or 0) + 1
end
local adopted = 0
-- A server out of memory refuses ZADD, unless the script has written before: so it removes nothing first.
redis.call('ZREMRANGEBYRANK', KEYS[2], 1, 0)
for _, raw in ipairs(redis.call('LRANGE', KEYS[1], 0, -1)) do
    if (known[raw] or 0) > 0 then
        known[raw] = known[raw] - 1
    else
        adopted = adopted + 1
        redis.call('ZADD', KEYS[2], ARGV[1], string.format('%s%08x:', ARGV[2], adopted) .. raw)
    end
end
return adopted
