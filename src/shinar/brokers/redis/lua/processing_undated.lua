-- How many reserved messages have no deadline; a script, because both numbers must be of one moment.
-- KEYS processing, deadlines
return redis.call('LLEN', KEYS[1]) - redis.call('ZCARD', KEYS[2])
