-- Settle reservations, each only while it is still held, and write what takes its place.
-- KEYS reserved, target ready, target notify, target delayed
-- ARGV per entry: gate ('1' = only if `member` is still reserved, '' = a plain publish), member, place, value, score
--      place: '' nothing, 'r' ready, 'd' delayed
-- returns one character per entry: '1' settled, '0' had lapsed and nothing was touched
local reserved, ready, notify, delayed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

redis.call('LLEN', ready)
redis.call('LLEN', notify)
redis.call('ZCARD', delayed)

local outcome = {}
for i = 1, #ARGV, 5 do
    local place, value = ARGV[i + 2], ARGV[i + 3]
    local held = ARGV[i] == '' or redis.call('ZREM', reserved, ARGV[i + 1]) == 1
    if held and place ~= '' then
        -- An identical member may be waiting already. Early is better than lost: send this one now.
        if place == 'r' or redis.call('ZADD', delayed, 'NX', ARGV[i + 4], value) == 0 then
            redis.call('RPUSH', ready, value)
            redis.call('RPUSH', notify, '1')
        end
    end
    outcome[#outcome + 1] = held and '1' or '0'
end
return table.concat(outcome)
