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

	"github.com/psidecar/psidecar/page"

	"github.com/psidecar/psidecar/planner/store"
)

// Shared says how a planner comes by a store that it shares with others, of which
// one at a time has the lead and serves.
type Shared struct {
	Namespace, Lease string // of the Lease, and the beginning of the names of the store's objects
	Config           *rest.Config
	// Advertise is the address at which the others reach this planner while it has
	// the lead; the zero value: they do not forward connections.
	Advertise netip.Addr
}

// lead is a planner's part in the election of the one that serves.
type lead struct {
	campaign store.Campaign
	address  standbyAddress // of this planner; zero: the others do not reach it
	way      standbyListener

	mu      sync.Mutex // guards the rest
	leader  string     // identity of the leader; empty: not known yet
	serving bool       // this planner has taken the lead over
}

// newLead returns the part of a planner with these listeners.
func newLead(o *Shared, reports net.Listener, front page.Server) (*lead, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("asking for the host's name: %w", err)
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

func portOf(l net.Listener) uint16 { return l.Addr().(*net.TCPAddr).AddrPort().Port() }

// setLeader records the leader.
func (l *lead) setLeader(leader string) {
	l.mu.Lock()
	l.leader = leader
	l.mu.Unlock()
	l.way.Drop()
	slog.Info("a planner has the lead", "leader", leader, "this", l.campaign.Identity)
}

// elsewhere returns where the planner is that has the lead; the zero value
// where that is this one, or not known. What ran at this one's address before
// has not the lead any more, whatever the Lease still says.
func (l *lead) elsewhere() standbyAddress {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := standbyAddressOf(l.leader)
	if l.leader == l.campaign.Identity || at.Reports == l.address.Reports {
		return standbyAddress{}
	}
	return at
}

// unready says why this planner is not to be asked, nil where it is: it serves,
// or sends on to the one that does.
func (l *lead) unready() error {
	if l.elsewhere().Reports.IsValid() {
		return nil
	}
	return l.waits()
}

// waits says why this planner does not serve, nil where it does.
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
	return fmt.Errorf("this planner waits: %s has the lead", l.leader)
}

// setServing notes that this planner serves.
func (l *lead) setServing() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.serving = true
}

// contend waits for the lead, then serves until that is lost or ctx ends.
func (p *Planner) contend(ctx context.Context) error {
	stop := p.forward()
	defer stop()
	return p.lead.campaign.Run(ctx, func(ctx context.Context, s *store.KubeStore) error {
		if err := p.usePlans(ctx, s); err != nil {
			return err
		}
		stop()
		p.lead.setServing()
		return p.serve(ctx)
	})
}

// forward forwards all connections to the leader, or answers that this planner is
// not the leader. The listener is there again when stop has returned.
func (p *Planner) forward() (stop func()) {
	server := grpc.NewServer(grpc.Creds(p.credentials()), grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		err := p.lead.waits()
		if err == nil {
			err = errors.New("this planner takes the lead over")
		}
		return status.Error(codes.Unavailable, err.Error())
	}))
	var ended sync.WaitGroup
	serve := func(l net.Listener) {
		if err := server.Serve(l); err != nil {
			slog.Debug("turning away ends", "error", err)
		}
	}
	ended.Go(func() { serve(&p.lead.way) })
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

// lent is a listener whose Close ends Accept and leaves it open.
type lent struct{ net.Listener }

func (l lent) Close() error { return setDeadline(l.Listener, time.Unix(1, 0)) }

func setDeadline(l net.Listener, at time.Time) error {
	return l.(interface{ SetDeadline(time.Time) error }).SetDeadline(at)
}
