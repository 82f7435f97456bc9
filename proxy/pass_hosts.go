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

// A connection to a host that is cut off cannot stand until that host is back, and keeps
// a proxy that is about to end from its end; those of other hosts stand meanwhile, and
// wait for the next proxy. One that is ended instead ends over there when that host is
// back, since TCP repeats its end ever more seldom: maybe after the client's next
// connection has come, which libzmq's ROUTER refuses while the one before is there. So a
// proxy looks whether all hosts answer before it brings any connection to stand or ends
// it, and goes on as it is while one does not: for hostsBack at most, and half of its
// grace.
//
// What has been handed over waits for longer where the other host is cut off when the
// time is over: for cutOffAtMost until the host is back, and for hostDials then, in which
// a SYN is sent again that was lost meanwhile.
const (
	hostsBack    = 5 * time.Second
	cutOffAtMost = 20 * time.Second
	hostDials    = 5 * time.Second
	hostAnswers  = 250 * time.Millisecond // a SYN that was lost is not waited for
	hostAgain    = 20 * time.Millisecond
)

// awaitHosts waits until the hosts of all links answer, and returns how long that took.
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
	if ctx.Err() != nil && s.p.life.Err() == nil {
		s.p.log.Info("connections are handed over or ended although a host does not answer")
	}
	return time.Since(began)
}

// waitFor returns the time in which a connection is to go on over another link, with the
// host of the other proxy.
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

// pause reports whether that time has passed before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// hosts are those of the proxies at the other ends of links.
func (s *passes) hosts() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, c := range s.p.conns.openConnections() {
		if far := addrPort(c.pipe.Far.RemoteAddr()).Addr(); c.kind != kindDirect && far.IsValid() {
			all[far] = true
		}
	}
	return all
}

// hostAnswers reports whether anybody answers at a host's mesh port, if only that nobody
// listens there. The kernel does, so that a busy host does not look like one that is cut
// off.
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
