-- Settle reservations with nothing in their place: what laravel_settle does for the most common case.
-- KEYS reserved
-- ARGV members
-- returns one character per member: '1' settled, '0' had lapsed
local outcome = {}
for first = 1, #ARGV, 1000 do
    local last = math.min(first + 999, #ARGV)
    for _, score in ipairs(redis.call('ZMSCORE', KEYS[1], unpack(ARGV, first, last))) do
        outcome[#outcome + 1] = score and '1' or '0'
    end
    redis.call('ZREM', KEYS[1], unpack(ARGV, first, last))
end
return table.concat(outcome)
