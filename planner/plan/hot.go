package plan

// Ways to relieve a server that holds one large value, which all hosts pull and push whole
// in each step of a synchronous job, by what the busiest host sends and receives. Each of
// the hosts has workers, of which pushes are summed and pulls shared on the host; servers
// are on some of them. A transfer counts at both its ends, but within a host at none.

// Ring is all-reduce by a ring of hosts, the least that is possible where all hosts carry
// alike.
func Ring(bytes float64, hosts int) float64 {
	n := float64(hosts)
	return 4 * bytes * (n - 1) / n
}

// Divided returns the bytes of the busiest host when a value lies in equal parts on
// servers of the hosts; 1: plain parameter servers.
func Divided(bytes float64, hosts, servers int) float64 {
	n, s := float64(hosts), float64(servers)
	asServer := 2 * bytes / s * (n - 1)
	if servers == hosts {
		return asServer + 2*bytes*(s-1)/s
	}
	return max(asServer+2*bytes*(s-1)/s, 2*bytes)
}

// Chained is pushes added up from host to host on the way to the one server, and its
// answers passed on along the same hosts: always in one order, or in pieces of which each
// ends at the server and begins at another host.
func Chained(bytes float64, hosts int, turns bool) float64 {
	n := float64(hosts)
	switch {
	case hosts <= 2:
		return 2 * bytes * (n - 1)
	case turns:
		return 4*bytes - 2*bytes/(n-1) // each host but the server's is the first of a share of the pieces
	}
	return 4 * bytes
}

// DividedTime is how long the links take for a step's transfers of a value in parts, at a
// rate both ways at once: all pushes, then all pulls.
func DividedTime(bytes, rate float64, hosts, servers int) float64 {
	in := bytes / float64(servers) * float64(hosts-1)
	out := bytes // of a host without a server
	if servers == hosts {
		out = bytes * float64(servers-1) / float64(servers)
	}
	return 2 * max(in, out) / rate
}

// ChainedTime is that of a chain in pieces, each passed on once it has arrived.
func ChainedTime(bytes, rate float64, hosts, pieces int) float64 {
	return 2 * bytes / rate * (1 + float64(hosts-2)/float64(pieces))
}
