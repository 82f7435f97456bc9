package planner

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"

	"github.com/psidecar/psidecar/internal/handshake"
	"github.com/psidecar/psidecar/page"

	"github.com/psidecar/psidecar/planner/store"
)

// Shared configures the election by which several planners share a store. One at a time has the
// lead and serves.
type Shared struct {
	// Namespace and Lease name the Lease; Lease also begins the names of the store's objects.
	Namespace, Lease string
	Config           *rest.Config
	// Advertise is the address at which the other planners reach this one while it has the lead.
	// With the zero value they do not forward connections to it.
	Advertise netip.Addr
}

// A lead is a planner's part in the election. way and the page consult it for every connection that
// comes while another planner serves.
type lead struct {
	campaign store.Campaign
	// Where the others reach this planner; zero if they do not.
	address standbyAddress
	way     standbyListener

	mu sync.Mutex // guards the rest
	// The leader's identity; "" until it is known.
	leader string
	// serving is set when this planner has opened the store and begins to serve.
	serving bool
}

// newLead returns the election's state for a planner with these listeners. The identity has a
// random part, so that a planner that restarts at the same address is not taken for its
// predecessor.
func newLead(o *Shared, reports net.Listener, front page.Server) (*lead, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("reading the hostname: %w", err)
	}
	c := &lead{}
	if o.Advertise.IsValid() {
		c.address = standbyAddress{Reports: netip.AddrPortFrom(o.Advertise, portOf(reports))}
		if front.Listener != nil {
			c.address.PagePort = portOf(front.Listener)
		}
	}
	c.campaign = store.Campaign{Namespace: o.Namespace, Lease: o.Lease, Identity: c.address.Identity(host + "-" + rand.Text()), Config: o.Config, Following: c.setLeader}
	c.way = standbyListener{Listener: lent{reports}, To: func() netip.AddrPort { return c.elsewhere().Reports }}
	return c, nil
}

// portOf returns the port of a TCP listener.
func portOf(l net.Listener) uint16 { return l.Addr().(*net.TCPAddr).AddrPort().Port() }

// setLeader records a new leader. Connections that are being forwarded to the old one are dropped:
// their callers connect again and are forwarded to the new one.
func (l *lead) setLeader(leader string) {
	l.mu.Lock()
	l.leader = leader
	l.mu.Unlock()
	l.way.Drop()
	slog.Info("leader changed", "leader", leader, "this", l.campaign.Identity)
}

// elsewhere returns the address of the planner that has the lead, or the zero value if that is this
// one or is unknown. A leader at this planner's own address is its predecessor, which has ended,
// whatever the Lease still says; forwarding to it would be a loop.
func (l *lead) elsewhere() standbyAddress {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := standbyAddressOf(l.leader)
	if l.leader == l.campaign.Identity || at.Reports == l.address.Reports {
		return standbyAddress{}
	}
	return at
}

// unready returns why this planner must not be asked, or nil if it serves or can forward to the
// planner that does.
func (l *lead) unready() error {
	if l.elsewhere().Reports.IsValid() {
		return nil
	}
	return l.waits()
}

// waits returns why this planner does not serve, or nil if it does.
func (l *lead) waits() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.leader {
	case "":
		return errors.New("it is not known yet which planner has the lead")
	case l.campaign.Identity:
		if l.serving {
			return nil
		}
		return errors.New("this planner takes the lead over")
	}
	return fmt.Errorf("standby planner: %s has the lead", l.leader)
}

// setServing records that this planner serves.
func (l *lead) setServing() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serving = true
}

// contend forwards callers until this planner has the lead, then serves until the lead is lost or
// ctx ends.
func (p *Planner) contend(ctx context.Context) error {
	stop := p.forward()
	defer stop()
	return p.lead.campaign.Run(ctx, func(ctx context.Context, s *store.KubeStore) error {
		if err := p.usePlans(ctx, s); err != nil {
			return err
		}
		// The listeners must be free before serve uses them. Until then callers were forwarded or
		// refused, so that none has waited for the store to be read.
		stop()
		p.lead.setServing()
		return p.serve(ctx)
	})
}

// forward forwards all connections at the planner's listeners to the leader. While no leader is
// known it accepts them and answers every call with UNAVAILABLE and the reason. When stop has
// returned, all forwarded connections are closed and the listeners can be used again.
func (p *Planner) forward() (stop func()) {
	server := grpc.NewServer(grpc.Creds(p.credentials()), grpc.ConnectionTimeout(handshakeIn), grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		err := p.lead.waits()
		if err == nil {
			err = errors.New("this planner takes the lead over")
		}
		return status.Error(codes.Unavailable, err.Error())
	}))
	var ended sync.WaitGroup
	serve := func(l net.Listener) {
		if err := server.Serve(l); err != nil {
			slog.Debug("standby server stopped", "error", err)
		}
	}
	// Those that are forwarded are not counted here: the leader does that.
	ended.Go(func() { serve(handshake.Listener{Listener: &p.lead.way, Set: p.opening}) })
	if p.opts.Control != nil { // its callers cannot be forwarded: the leader would not know the user
		ended.Go(func() { serve(lent{p.opts.Control}) })
	}
	return sync.OnceFunc(func() {
		server.Stop()
		ended.Wait()
		setDeadline(p.opts.Reports, time.Time{})
		if p.opts.Control != nil {
			setDeadline(p.opts.Control, time.Time{})
		}
	})
}

// A lent listener is used by a server that closes it, although it must stay open: Close only ends
// Accept, by a deadline in the past.
type lent struct{ net.Listener }

func (l lent) Close() error { return setDeadline(l.Listener, time.Unix(1, 0)) }

// setDeadline sets the deadline of Accept; the zero time removes it. All listeners of a planner
// have one.
func setDeadline(l net.Listener, at time.Time) error {
	return l.(interface{ SetDeadline(time.Time) error }).SetDeadline(at)
}
