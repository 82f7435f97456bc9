package plan

// The functions of this file compare ways to relieve a server that holds one large value, which all
// hosts pull and push whole in each step of a synchronous job. They return the bytes that the
// busiest host sends and receives in a step. A host's workers have their pushes summed and share
// pulls, so each host transfers the value once each way. A transfer counts at both its ends, and
// not at all within a host.

// Ring is all-reduce over a ring of hosts, which is the minimum if all hosts carry the same load.
func Ring(bytes float64, hosts int) float64 {
	n := float64(hosts)
	return 4 * bytes * (n - 1) / n
}

// Divided is a value in equal parts on that many servers, each on a host of its own; servers = 1 is
// a plain parameter server. The busiest host is one with a server or, with few hosts without one,
// one that only pulls and pushes.
func Divided(bytes float64, hosts, servers int) float64 {
	n, s := float64(hosts), float64(servers)
	asServer := 2 * bytes / s * (n - 1)
	if servers == hosts {
		return asServer + 2*bytes*(s-1)/s
	}
	return max(asServer+2*bytes*(s-1)/s, 2*bytes)
}

// Chained is one server, to which pushes are added up from host to host, and whose answer is passed
// on along the same hosts. With turns the value is cut into pieces that all end at the server but
// begin at different hosts, which spreads the load of the first host.
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

// DividedTime is the time in seconds that a step's transfers of a value in parts take on links of
// rate bytes a second in each direction, all pushes before all pulls.
func DividedTime(bytes, rate float64, hosts, servers int) float64 {
	in := bytes / float64(servers) * float64(hosts-1)
	out := bytes // of a host without a server
	if servers == hosts {
		out = bytes * float64(servers-1) / float64(servers)
	}
	return 2 * max(in, out) / rate
}

// ChainedTime is the same for a chain in pieces, each passed on as soon as it has arrived: the
// pipeline has to fill over hosts-2 links.
func ChainedTime(bytes, rate float64, hosts, pieces int) float64 {
	return 2 * bytes / rate * (1 + float64(hosts-2)/float64(pieces))
}
