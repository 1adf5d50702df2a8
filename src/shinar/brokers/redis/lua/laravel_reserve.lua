-- Migrate what became due or lapsed, then hand out up to `limit` messages.
-- KEYS ready, reserved, notify, delayed
-- ARGV whole seconds now, deadline score, migration batch (-1 = all), limit, '1' to recover lapsed reservations
-- returns {raw...}, how each became its reserved member, joined by blanks: '-' not at all, 'text' in place of
--         the number that ends it, 'start,end,text' elsewhere,
--         score of the next entry to fall due, number of copies put back
local ready, reserved, notify, delayed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local limit = tonumber(ARGV[4])

local function migrate(from)
    local due = redis.call('ZRANGEBYSCORE', from, '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])
    if #due > 0 then
        -- A server out of memory refuses RPUSH, unless the script has written before: so it removes nothing
        -- first. Consumers must be able to drain it.
        redis.call('ZREMRANGEBYRANK', from, 1, 0)
    end
    for first = 1, #due, 100 do
        local last = math.min(first + 99, #due)
        local tokens = {}
        for i = first, last do
            tokens[#tokens + 1] = '1'
        end
        redis.call('RPUSH', ready, unpack(due, first, last))
        redis.call('RPUSH', notify, unpack(tokens))
    end
    if #due > 0 then
        redis.call('ZREMRANGEBYRANK', from, 0, #due - 1)
    end
end

-- Start and end of the value of the last top-level member `attempts`. `text` is a valid JSON object.
local function attempts_span(text)
    local depth, position, first, last = 0, 1, nil, nil
    while true do
        local at = string.find(text, '["{}%[%]]', position)
        if not at then
            return first, last
        end
        local mark = string.byte(text, at)
        position = at + 1
        if mark == 123 or mark == 91 then
            depth = depth + 1
        elseif mark == 125 or mark == 93 then
            depth = depth - 1
        else
            local stop = at
            repeat
                stop = string.find(text, '["\\]', stop + 1)
                local escaped = string.byte(text, stop) == 92
                if escaped then
                    stop = stop + 1
                end
            until not escaped
            position = stop + 1
            if depth == 1 then
                local _, colon = string.find(text, '^%s*:%s*', position)
                local name = colon and string.sub(text, at + 1, stop - 1)
                if name and string.find(name, '\\', 1, true) then
                    name = cjson.decode('"' .. name .. '"')
                end
                if name == 'attempts' then
                    first = colon + 1
                    _, last = string.find(text, '^[-+.%deE]+', first)
                end
            end
        end
    end
end

-- cjson reads numbers that are not finite and refuses to write them.
local function writable(document)
    for _, value in pairs(document) do
        local kind = type(value)
        if kind == 'table' then
            if not writable(value) then
                return false
            end
        elseif kind == 'number' and value - value ~= 0 then
            return false
        end
    end
    return true
end

-- The text with one attempt more, and what was changed; nil when there are no countable attempts.
-- cjson only probes: what it would write back is not what was sent.
local function counted(raw)
    local readable, document = pcall(cjson.decode, raw)
    if not readable or type(document) ~= 'table' or type(document.attempts) ~= 'number' then
        return nil
    end
    if not writable(document) then
        return nil
    end
    local text = string.format('%.17g', document.attempts + 1)
    -- Most producers write attempts last. A quote after a backslash would be inside a name.
    local at = string.find(raw, '"attempts":', math.max(#raw - 40, 2), true)
    if at and string.byte(raw, at - 1) ~= 92 and string.find(raw, '^%d+}$', at + 11) then
        return string.sub(raw, 1, at + 10) .. text .. '}', text
    end
    local first, last = attempts_span(raw)
    if not last then
        return nil
    end
    return string.sub(raw, 1, first - 1) .. text .. string.sub(raw, last + 1), (first - 1) .. ',' .. last .. ',' .. text
end

-- A key of another type must fail here, before anything is taken: a script has no rollback.
redis.call('LLEN', ready)
redis.call('LLEN', notify)
redis.call('ZCARD', reserved)

migrate(delayed)
if ARGV[5] == '1' then
    migrate(reserved)
end

local found, changes, again = {}, {}, {}
local function take(raw)
    local member, change = counted(raw)
    if not member then
        member, change = raw, '-'
    end
    -- The set holds a member once. While an identical copy is out, this one has to wait its turn,
    -- or settling the first would settle both.
    if redis.call('ZADD', reserved, 'NX', ARGV[2], member) == 1 then
        found[#found + 1] = raw
        changes[#changes + 1] = change
    else
        again[#again + 1] = raw
    end
end
-- Copies that wait must not hide what stands behind them; a thousand of them are enough for one look.
while #found < limit and #again < 1000 do
    local wanted = limit - #found
    local popped = redis.call('LPOP', ready, wanted) or {}
    for _, raw in ipairs(popped) do
        take(raw)
    end
    if #popped < wanted then
        break
    end
end
for _, raw in ipairs(again) do
    redis.call('RPUSH', ready, raw)
end
if #found > 0 then
    redis.call('LPOP', notify, #found)
end

local due = ''
if #found == 0 then
    for _, key in ipairs({ delayed, ARGV[5] == '1' and reserved or delayed }) do
        local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
        if head and head ~= 'inf' and (due == '' or tonumber(head) < tonumber(due)) then
            due = head
        end
    end
end
return { found, table.concat(changes, ' '), due, #again }
