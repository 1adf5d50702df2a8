-- Settle reservations, each only while it is still held, and write what takes its place.
-- KEYS processing, deadlines, target ready, target delayed
-- ARGV per entry: token ('' = not gated, a plain publish), raw, place, value, score
--      place: '' nothing, 'r' ready, 'd' delayed; value: '' means raw itself
-- returns one character per entry: '1' settled, '0' had lapsed and nothing was touched
local processing, deadlines, ready, delayed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

redis.call('LLEN', processing)
redis.call('LLEN', ready)
redis.call('ZCARD', delayed)

local outcome = {}
for i = 1, #ARGV, 5 do
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
            redis.call('ZADD', delayed, ARGV[i + 4], value)
        end
    end
    outcome[#outcome + 1] = held and '1' or '0'
end
return table.concat(outcome)
