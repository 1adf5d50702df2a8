-- Settle reservations with nothing in their place: what laravel_settle does for the most common case.
-- KEYS reserved
-- ARGV members
-- returns one character per member: '1' settled, '0' had lapsed
local outcome = {}
for i, member in ipairs(ARGV) do
    outcome[i] = redis.call('ZREM', KEYS[1], member)
end
return table.concat(outcome)
