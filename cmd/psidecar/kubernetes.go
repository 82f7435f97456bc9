package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/psidecar/psidecar/planner/store/kube"
)

// cluster finds the API server, and the namespace that this process belongs
// to: of the pod that it runs in, or of the kubeconfig.
func cluster() (*rest.Config, string, error) {
	c := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil)
	namespace, _, err := c.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("looking for a cluster: %w", err)
	}
	config, err := c.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("looking for a cluster, of this pod or of KUBECONFIG: %w", err)
	}
	return config, namespace, nil
}

// contest is a planner's part in the contest for the lead.
type contest struct {
	campaign kube.Campaign
	flag     string

	mu      sync.Mutex
	leader  string
	serving bool
}

// contest returns nil where the store is not in a cluster.
func (f *plannerFlags) contest(flag string) (*contest, error) {
	place, namespace, named := strings.Cut(f.store, ":")
	if place != "kubernetes" {
		return nil, nil
	}
	if named && namespace == "" || f.lease == "" {
		return nil, usagef("%sstore %q: want kubernetes or kubernetes:NAMESPACE, and a name by %slease", flag, f.store, flag)
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
	c := &contest{flag: flag}
	c.campaign = kube.Campaign{Namespace: namespace, Lease: f.lease, Identity: host + "-" + rand.Text(), Config: config, Following: c.follow}
	return c, nil
}

// follow notes who has the lead.
func (c *contest) follow(leader string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leader = leader
	slog.Info("a planner has the lead", "leader", leader, "this", c.campaign.Identity)
}

// unready says why this planner does not serve, nil where it does.
func (c *contest) unready() error {
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

// turnAway answers all who come that this planner has not the lead. The
// listener is there again when stop has returned.
func (c *collector) turnAway() (stop func()) {
	server := grpc.NewServer(grpc.Creds(c.credentials()), grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
		err := c.contest.unready()
		if err == nil {
			err = errors.New("this planner takes the lead over")
		}
		return status.Error(codes.Unavailable, err.Error())
	}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(lent{c.reports}); err != nil {
			slog.Debug("turning away ends", "error", err)
		}
	}()
	return sync.OnceFunc(func() {
		server.Stop()
		<-ended
		setDeadline(c.reports, time.Time{})
	})
}

// lent is a listener whose Close ends Accept and leaves it open.
type lent struct{ net.Listener }

func (l lent) Close() error { return setDeadline(l.Listener, time.Unix(1, 0)) }

func setDeadline(l net.Listener, at time.Time) error {
	return l.(*net.TCPListener).SetDeadline(at)
}
