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

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/pods"
	"github.com/psidecar/psidecar/agent/web"
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

// podOf is what people call a node's pod.
func podOf(n web.Node) string {
	if p := n.PodName; p != nil {
		return p.Namespace + "/" + p.Name
	}
	return n.Pod
}

// podFlags say where an agent learns of pods.
type podFlags struct {
	on             bool
	node, selector string
}

func (f *podFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&f.on, "kubernetes", false, "learn the names of this node's pods from the API server: of the cluster whose pod this is, or of KUBECONFIG")
	flags.StringVar(&f.node, "kubernetes-node", "", "name of this node; default: NODE_NAME of the environment")
	flags.StringVar(&f.selector, "kubernetes-selector", "", "watch jobs in pods with these labels, or in namespaces with them, such as psidecar.io/job=true; empty: all jobs")
}

// open returns nil where pods are not asked for. With it the agent names them.
func (f *podFlags) open(opts *agent.Options) (*pods.Pods, error) {
	if f.node == "" {
		f.node = os.Getenv("NODE_NAME")
	}
	switch {
	case !f.on && f.selector != "":
		return nil, usagef("--kubernetes-selector needs --kubernetes")
	case !f.on:
		return nil, nil
	case f.node == "":
		return nil, usagef("--kubernetes needs --kubernetes-node, or NODE_NAME in the environment (fieldRef: spec.nodeName)")
	}
	config, _, err := cluster()
	if err != nil {
		return nil, fmt.Errorf("--kubernetes: %w", err)
	}
	p, err := pods.New(config, f.node, f.selector)
	if err != nil {
		return nil, usagef("--kubernetes: %w", err)
	}
	if f.selector != "" {
		opts.Selects = p.Selected
	}
	opts.Pod = func(uid string) (web.Pod, bool) {
		pod, ok := p.Lookup(uid)
		return web.Pod{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Node}, ok
	}
	return p, nil
}
