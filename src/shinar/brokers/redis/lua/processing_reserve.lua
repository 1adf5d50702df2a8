-- Sweep what lapsed or became due, then hand out up to `limit` messages.
-- KEYS ready, processing, deadlines, delayed
-- ARGV whole seconds now, exact now, deadline score, migration batch (-1 = all), limit, token stem (24 hex)
-- returns {raw...}, score of the next entry to fall due ('' when there is none)
local ready, processing, deadlines, delayed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local limit = tonumber(ARGV[5])

-- A key of another type must fail here, before anything is taken: a script has no rollback.
redis.call('LLEN', ready)
redis.call('LLEN', processing)

for _, member in ipairs(redis.call('ZRANGEBYSCORE', deadlines, '-inf', ARGV[1], 'LIMIT', 0, ARGV[4])) do
    if #member >= 34 and string.byte(member, 33) == 58 then
        local raw = string.sub(member, 34)
        if redis.call('LREM', processing, 1, raw) == 1 then
            redis.call('RPUSH', ready, raw)
        end
    end
    redis.call('ZREM', deadlines, member)
end

local due_now = redis.call('ZRANGEBYSCORE', delayed, '-inf', ARGV[2], 'LIMIT', 0, ARGV[4])
if #due_now > 0 then
    -- A server out of memory refuses RPUSH, unless the script has written before: so it removes nothing first.
    -- Consumers must be able to drain it.
    redis.call('ZREMRANGEBYRANK', delayed, 1, 0)
end
for _, member in ipairs(due_now) do
    redis.call('RPUSH', ready, string.sub(member, 34))
    redis.call('ZREM', delayed, member)
end

local found = {}
if limit > 0 then
    found = redis.call('LPOP', ready, limit) or {}
    local scored = {}
    for i, raw in ipairs(found) do
        scored[#scored + 1] = ARGV[3]
        scored[#scored + 1] = string.format('%s%08x:', ARGV[6], i) .. raw
        -- unpack is limited by Lua's stack, so the variadic writes go in chunks.
        if i % 1000 == 0 or i == #found then
            local first = i - #scored / 2 + 1
            redis.call('RPUSH', processing, unpack(found, first, i))
            redis.call('ZADD', deadlines, unpack(scored))
            scored = {}
        end
    end
end

local due = ''
if #found == 0 then
    for _, key in ipairs({ deadlines, delayed }) do
        local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
        if head and head ~= 'inf' and (due == '' or tonumber(head) < tonumber(due)) then
            due = head
        end
    end
end
return { found, due }
