package daemon

import (
	"fmt"
	"os"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/page"
	"github.com/psidecar/psidecar/internal/policy"
)

// PodSettings are the flags of Kubernetes.
type PodSettings struct {
	On       bool   // the API server is followed
	Node     string // this node's name; empty: NODE_NAME of the environment
	Selector string // labels of the pods whose jobs are watched; empty: all
}

// Open returns the pods to follow, nil if that is off, and has the agent of these options name
// pods, select them, and read their annotations.
func (f *PodSettings) Open(opts *agent.Options) (*discover.Pods, error) {
	if f.Node == "" {
		f.Node = os.Getenv("NODE_NAME")
	}
	switch {
	case !f.On && f.Selector != "":
		return nil, cli.Usagef("--kubernetes-selector needs --kubernetes")
	case !f.On:
		return nil, nil
	case f.Node == "":
		return nil, cli.Usagef("--kubernetes needs --kubernetes-node, or NODE_NAME in the environment (fieldRef: spec.nodeName)")
	}
	config, err := discover.Cluster()
	if err != nil {
		return nil, fmt.Errorf("--kubernetes: %w", err)
	}
	p, err := discover.NewPods(config, f.Node, f.Selector, opts.Allowed)
	if err != nil {
		return nil, cli.Usagef("--kubernetes: %w", err)
	}
	// Otherwise nothing can leave a pod out, and the agent need not wait for the API server to
	// name it.
	if f.Selector != "" || opts.Allowed[policy.Observe] {
		opts.Selects = p.Selected
	}
	opts.Said = p.Said
	opts.Pod = func(uid string) (page.Pod, bool) {
		pod, ok := p.Lookup(uid)
		return page.Pod{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Node}, ok
	}
	return p, nil
}
