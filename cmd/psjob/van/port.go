package van

import (
	"math/rand/v2"
	"net"
	"strconv"
)

// FreePort chooses from ports below those that the kernel gives to connections
// (ip_local_port_range): one of these may be in use again before the scheduler listens.
const firstPort, lastPort = 20_000, 32_767

// FreePort returns a port of a host on which nobody listens. The scheduler binds it a moment
// later; that another process takes it in between is unlikely, and an error that says so.
func FreePort(host string) (port int, err error) {
	for range 100 {
		port = firstPort + rand.IntN(lastPort-firstPort+1)
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port))); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}
