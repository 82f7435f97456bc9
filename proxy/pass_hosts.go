package proxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// A connection to a host that is cut off cannot stand until the host is back, and keeps a proxy
// that is about to end from its end. The connections of other hosts stand meanwhile, and wait for
// the next proxy. If it is ended instead, its end arrives only after the host is back, since TCP
// repeats a FIN ever more seldom: possibly after the client's next connection, which libzmq's
// ROUTER refuses while the previous one exists. Therefore a proxy checks that all hosts answer
// before it brings any connection to stand or ends it, and carries on while one does not: for
// hostsBack at most, and half of its grace.
//
// What has been handed over waits longer where the other host is cut off when its time is over: for
// cutOffAtMost until the host is back, and then for hostDials, in which a SYN is repeated that was
// lost meanwhile.
const (
	hostsBack    = 5 * time.Second
	cutOffAtMost = 20 * time.Second
	hostDials    = 5 * time.Second
	hostAnswers  = 250 * time.Millisecond // a SYN that was lost is not waited for
	hostAgain    = 20 * time.Millisecond
)

// awaitHosts blocks until the hosts of all links answer, or for its bound, and returns how long
// that took.
func (s *passes) awaitHosts() time.Duration {
	began := time.Now()
	ctx, cancel := context.WithTimeout(s.p.life, min(hostsBack, s.p.opts.Grace/2))
	defer cancel()
	var all sync.WaitGroup
	for host := range s.hosts() {
		all.Go(func() {
			for !s.answers(ctx, host) && pause(ctx, hostAgain) {
			}
		})
	}
	all.Wait()
	// A host that is cut off for longer delays nothing further.
	if ctx.Err() != nil && s.p.life.Err() == nil {
		s.p.log.Info("a host does not respond; handing over or closing connections anyway")
	}
	return time.Since(began)
}

// waitFor returns a context that ends when a connection has waited long enough to go on over
// another link with the proxy of a host.
func (s *passes) waitFor(host netip.Addr, within time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(s.p.life)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		defer cancel()
		if !pause(ctx, within) || s.answers(ctx, host) {
			return
		}
		for end := time.Now().Add(cutOffAtMost); !s.answers(ctx, host); {
			if !pause(ctx, hostAgain) || time.Now().After(end) {
				return
			}
		}
		pause(ctx, hostDials)
	})
	return ctx, func() { cancel(); waiting.Wait() }
}

// pause waits for a time, and returns false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// hosts returns the hosts of the proxies at the other ends of links.
func (s *passes) hosts() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, c := range s.p.conns.openConnections() {
		if far := addrPort(c.pipe.Far.RemoteAddr()).Addr(); c.kind != kindDirect && far.IsValid() {
			all[far] = true
		}
	}
	return all
}

// hostAnswers reports whether a host's mesh port answers, if only by refusing the connection. The
// kernel answers, so a host that is merely busy does not look like one that is cut off.
func (s *passes) hostAnswers(ctx context.Context, host netip.Addr) bool {
	ctx, cancel := context.WithTimeout(ctx, hostAnswers)
	defer cancel()
	conn, err := s.p.dialer.DialContext(ctx, "tcp", net.JoinHostPort(host.String(), strconv.Itoa(int(s.p.opts.MeshPort))))
	if err != nil {
		return errors.Is(err, syscall.ECONNREFUSED)
	}
	conn.Close()
	return true
}
