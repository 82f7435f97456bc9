package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/page"
	"github.com/psidecar/psidecar/planner/standby"
	"github.com/psidecar/psidecar/planner/store/kube"
)

// contest is a planner's part in the contest for the lead.
type contest struct {
	campaign kube.Campaign
	flag     string
	address  standby.Address // of this planner; zero: the others do not reach it
	way      standby.Listener

	mu      sync.Mutex
	leader  string
	serving bool
}

// contest returns the part of a planner with these listeners; nil where the
// store is not in a cluster.
func (f *plannerFlags) contest(flag string, reports net.Listener, front page.Server) (*contest, error) {
	place, namespace, named := strings.Cut(f.store, ":")
	if place != "kubernetes" {
		if f.advertise != "" {
			return nil, usagef("%sadvertise is for planners that share a store: it needs %sstore kubernetes", flag, flag)
		}
		return nil, nil
	}
	if named && namespace == "" || f.lease == "" {
		return nil, usagef("%sstore %q: want kubernetes or kubernetes:NAMESPACE, and a name by %slease", flag, f.store, flag)
	}
	c := &contest{flag: flag}
	if f.advertise != "" {
		ip, err := netip.ParseAddr(f.advertise)
		if err != nil {
			return nil, usagef("%sadvertise %q: want an IP address: %w", flag, f.advertise, err)
		}
		c.address = standby.Address{Reports: netip.AddrPortFrom(ip, portOf(reports))}
		if front.Listener != nil {
			c.address.PagePort = portOf(front.Listener)
		}
	}
	config, own, err := cluster()
	if err != nil {
		return nil, fmt.Errorf("%sstore %s: %w", flag, f.store, err)
	}
	if !named {
		namespace = own
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("asking for the host's name: %w", err)
	}
	c.campaign = kube.Campaign{Namespace: namespace, Lease: f.lease, Identity: c.address.Identity(host + "-" + rand.Text()), Config: config, Following: c.follow}
	c.way = standby.Listener{Listener: lent{reports}, To: func() netip.AddrPort { return c.elsewhere().Reports }}
	return c, nil
}

func portOf(l net.Listener) uint16 { return l.Addr().(*net.TCPAddr).AddrPort().Port() }

// follow notes who has the lead.
func (c *contest) follow(leader string) {
	c.mu.Lock()
	c.leader = leader
	c.mu.Unlock()
	c.way.Drop()
	slog.Info("a planner has the lead", "leader", leader, "this", c.campaign.Identity)
}

// elsewhere returns where the planner is that has the lead; the zero value
// where that is this one, or not known. What ran at this one's address before
// has not the lead any more, whatever the Lease still says.
func (c *contest) elsewhere() standby.Address {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := standby.AddressOf(c.leader)
	if c.leader == c.campaign.Identity || at.Reports == c.address.Reports {
		return standby.Address{}
	}
	return at
}

// unready says why this planner is not to be asked, nil where it is: it serves,
// or sends on to the one that does.
func (c *contest) unready() error {
	if c.elsewhere().Reports.IsValid() {
		return nil
	}
	return c.waits()
}

// waits says why this planner does not serve, nil where it does.
func (c *contest) waits() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.leader {
	case "":
		return errors.New("it is not known yet which planner has the lead")
	case c.campaign.Identity:
		if c.serving {
			return nil
		}
		return errors.New("this planner takes the lead over")
	}
	return fmt.Errorf("this planner waits: %s has the lead", c.leader)
}

func (c *contest) serve() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving = true
}

// contend waits for the lead, then serves until that is lost or ctx ends.
func (c *collector) contend(ctx context.Context) error {
	stop := c.turnAway()
	defer stop()
	return c.contest.campaign.Run(ctx, func(ctx context.Context, s *kube.Store) error {
		if err := c.usePlans(ctx, s, c.contest.flag); err != nil {
			return err
		}
		stop()
		c.contest.serve()
		return c.serve(ctx)
	})
}

// turnAway sends all who come on to the planner that has the lead, or answers
// that this one has it not. The listener is there again when stop has returned.
func (c *collector) turnAway() (stop func()) {
	server := grpc.NewServer(grpc.Creds(c.credentials()), grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		err := c.contest.waits()
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
	ended.Go(func() { serve(&c.contest.way) })
	if c.control != nil { // who calls there cannot be sent on: the leader would not know the user
		ended.Go(func() { serve(lent{c.control}) })
	}
	return sync.OnceFunc(func() {
		server.Stop()
		ended.Wait()
		setDeadline(c.reports, time.Time{})
		if c.control != nil {
			setDeadline(c.control, time.Time{})
		}
	})
}

// lent is a listener whose Close ends Accept and leaves it open.
type lent struct{ net.Listener }

func (l lent) Close() error { return setDeadline(l.Listener, time.Unix(1, 0)) }

func setDeadline(l net.Listener, at time.Time) error {
	return l.(interface{ SetDeadline(time.Time) error }).SetDeadline(at)
}
