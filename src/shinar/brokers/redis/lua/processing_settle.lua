-- Settle reservations, each only while it is still held, and write what takes its place.
-- KEYS processing, deadlines, target ready, target delayed, target twins
-- ARGV token stem of twins (24 hex), then per entry: token ('' = not gated, a plain publish), raw, place, value, score
--      place: '' nothing, 'r' ready, 'd' delayed; value: '' means raw itself
-- returns one character per entry: '1' settled, '0' had lapsed and nothing was touched
local processing, deadlines, ready, delayed, twins = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

redis.call('LLEN', processing)
redis.call('LLEN', ready)
redis.call('ZCARD', delayed)
redis.call('ZCARD', twins)

-- The delayed set is shared with other libraries, whose members are bare values, and it holds each member once.
-- A second copy, and a value that itself looks like a token and a value, wait in a set of our own.
local function delay(value, score, number)
    local like_a_token = string.byte(value, 33) == 58 and not string.find(string.sub(value, 1, 32), '[^0-9a-f]')
    if like_a_token or redis.call('ZADD', delayed, 'NX', score, value) == 0 then
        redis.call('ZADD', twins, score, string.format('%s%08x:', ARGV[1], number) .. value)
    end
end

local outcome = {}
for i = 2, #ARGV, 5 do
    local token, raw, place = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local held = token == '' or redis.call('ZREM', deadlines, token .. ':' .. raw) == 1
    if held then
        if token ~= '' then
            redis.call('LREM', processing, 1, raw)
        end
        local value = ARGV[i + 3]
        if value == '' then
            value = raw
        end
        if place == 'r' then
            redis.call('RPUSH', ready, value)
        elseif place == 'd' then
            delay(value, ARGV[i + 4], i)
        end
    end
    outcome[#outcome + 1] = held and '1' or '0'
end
return table.concat(outcome)
