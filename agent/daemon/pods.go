package daemon

import (
	"fmt"
	"os"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/discover"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/page"
)

// PodSettings say where an agent learns of pods.
type PodSettings struct {
	On       bool   // they are asked for
	Node     string // this one's name; empty: NODE_NAME of the environment
	Selector string // labels of the pods whose jobs are watched; empty: all
}

// Open returns nil where pods are not asked for. With it the agent names them, and hears
// what they say of their jobs.
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
	config, _, err := discover.Cluster()
	if err != nil {
		return nil, fmt.Errorf("--kubernetes: %w", err)
	}
	p, err := discover.NewPods(config, f.Node, f.Selector, opts.Allowed)
	if err != nil {
		return nil, cli.Usagef("--kubernetes: %w", err)
	}
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
