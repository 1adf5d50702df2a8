<?php
// A PHP program that speaks PHPMQ with plain stream sockets, as php-mq's client does: it writes one frame
// a write, reads a header with one non-blocking read of 8 bytes, and reads a fixed number of packets for
// each message type, whatever the header says. Written for Shinar's tests; needs nothing but php-cli.
//
//   php phpmq.php HOST:PORT legacy|ttl send QUEUE COUNT [TTL]
//   php phpmq.php HOST:PORT legacy|ttl work QUEUE WINDOW TOTAL [ack|requeue|dead]
declare(strict_types=1);
error_reporting(-1);
set_error_handler(function (int $no, string $text): bool { throw new RuntimeException($text); });

[, $address, $form, $action] = $argv;
$socket = stream_socket_client("tcp://$address", $code, $error, 5);
stream_set_blocking($socket, false);

function packet(int $type, string $content): string
{
    return sprintf('P%02d%029d%s', $type, strlen($content), $content);
}

function frame(int $type, string ...$packets): string
{
    return sprintf('H01%03d%02d%s', $type, count($packets), implode('', $packets));
}

function put($socket, string $frame): void
{
    while ($frame !== '') {
        $w = [$socket]; $r = $e = null;
        stream_select($r, $w, $e, 5);
        $done = fwrite($socket, substr($frame, 0, 1024));
        if ($done === false) { throw new RuntimeException('write failed'); }
        $frame = substr($frame, $done);
    }
}

function get($socket, int $length, bool $whole): string
{
    $data = '';
    $until = microtime(true) + 10;
    while (strlen($data) < $length) {
        $r = [$socket]; $w = $e = null;
        if (!stream_select($r, $w, $e, 1)) {
            if (microtime(true) > $until) { throw new RuntimeException('read timed out'); }
            continue;
        }
        $more = fread($socket, $length - strlen($data));
        if ($more === '' && feof($socket)) { throw new RuntimeException('server disconnected'); }
        $data .= $more;
        if ($whole && strlen($data) < $length) { throw new RuntimeException('partial header: ' . strlen($data)); }
    }
    return $data;
}

function dispatch($socket, int $packets): array
{
    $header = get($socket, 8, true);
    if (substr($header, 0, 6) !== 'H01003') { throw new RuntimeException("not a dispatch: $header"); }
    $found = [];
    for ($i = 0; $i < $packets; $i++) {
        $head = get($socket, 32, false);
        if ($head[0] !== 'P') { throw new RuntimeException("not a packet: $head"); }
        $length = (int) substr($head, 3);
        $found[(int) substr($head, 1, 2)] = $length ? get($socket, $length, false) : '';
    }
    return $found;
}

// Closing with unread bytes would reset the connection, and the server might lose what we wrote last.
function leave($socket): void
{
    stream_socket_shutdown($socket, STREAM_SHUT_WR);
    while (!feof($socket)) {
        $r = [$socket]; $w = $e = null;
        stream_select($r, $w, $e, 5);
        fread($socket, 8192);
    }
    fclose($socket);
}

if ($action === 'send') {
    [, , , , $queue, $count] = $argv;
    for ($i = 0; $i < (int) $count; $i++) {
        $packets = [packet(1, $queue), packet(2, "php $i größe ✓")];
        if ($form === 'ttl') { $packets[] = packet(5, $argv[6] ?? '0'); }
        put($socket, frame(1, ...$packets));
    }
    leave($socket);
    exit(0);
}

[, , , , $queue, $window, $total] = $argv;
put($socket, frame(2, packet(1, $queue), packet(4, $window)));
for ($i = 0; $i < (int) $total; $i++) {
    $message = dispatch($socket, $form === 'ttl' ? 4 : 3);
    if (strlen($message[3]) !== 32) { throw new RuntimeException('odd id'); }
    echo json_encode(['queue' => $message[1], 'body' => $message[2], 'id' => $message[3], 'ttl' => $message[5] ?? null],
        JSON_UNESCAPED_UNICODE), "\n";
    $settle = $argv[7] ?? 'ack';
    if ($settle === 'ack') { put($socket, frame(4, packet(1, $queue), packet(3, $message[3]))); }
    if ($settle === 'requeue') { put($socket, frame(5, packet(1, $queue), packet(3, $message[3]), packet(5, '900'))); }
    if ($settle === 'dead') { put($socket, frame(6, packet(1, $queue), packet(3, $message[3]))); }
}
leave($socket);
