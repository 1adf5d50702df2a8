-- Sweep what lapsed or became due, then hand out up to `limit` messages.
-- KEYS ready, processing, deadlines, delayed, twins
-- ARGV whole seconds now, exact now, deadline score, migration batch (-1 = all), limit, token stem (24 hex),
--      stem of the reservations that the caller counts before it returns them ('' = none)
-- returns {raw...}, score of the next entry to fall due ('' when there is none), {lapsed members to count...}
local ready, processing, deadlines, delayed, twins = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local limit, to_count = tonumber(ARGV[5]), ARGV[7]

-- A key of another type must fail here, before anything is taken: a script has no rollback.
redis.call('LLEN', ready)
redis.call('LLEN', processing)

-- The value of a member `<32 hex>:<value>`; nil for any other member.
local function after_token(member)
    if string.byte(member, 33) == 58 and not string.find(string.sub(member, 1, 32), '[^0-9a-f]') then
        return string.sub(member, 34)
    end
    return nil
end

local uncounted = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', deadlines, '-inf', ARGV[1], 'LIMIT', 0, ARGV[4])) do
    if to_count ~= '' and string.sub(member, 1, #to_count) == to_count then
        uncounted[#uncounted + 1] = member
    else
        local raw = after_token(member)
        if raw and redis.call('LREM', processing, 1, raw) == 1 then
            redis.call('RPUSH', ready, raw)
        end
        redis.call('ZREM', deadlines, member)
    end
end

-- A member is the value itself, whoever wrote it; only our twins, and what earlier versions of Shinar
-- delayed, have a token in front.
for _, key in ipairs({ delayed, twins }) do
    local due_now = redis.call('ZRANGEBYSCORE', key, '-inf', ARGV[2], 'LIMIT', 0, ARGV[4])
    if #due_now > 0 then
        -- A server out of memory refuses RPUSH, unless the script has written before: so it removes nothing
        -- first. Consumers must be able to drain it.
        redis.call('ZREMRANGEBYRANK', key, 1, 0)
    end
    for _, member in ipairs(due_now) do
        redis.call('RPUSH', ready, after_token(member) or member)
        redis.call('ZREM', key, member)
    end
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
    for _, key in ipairs({ deadlines, delayed, twins }) do
        local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
        if head and head ~= 'inf' and (due == '' or tonumber(head) < tonumber(due)) then
            due = head
        end
    end
end
return { found, due, uncounted }
