package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/psidecar/psidecar/agent"
	"github.com/psidecar/psidecar/agent/pods"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/policy"
	"github.com/psidecar/psidecar/page"
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

// podFlags say where an agent learns of pods.
type podFlags struct {
	on             bool
	node, selector string
}

func (f *podFlags) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&f.on, "kubernetes", false, "learn the names of this node's pods from the API server: of the cluster whose pod this is, or of KUBECONFIG")
	flags.StringVar(&f.node, "kubernetes-node", "", "name of this node; default: NODE_NAME of the environment")
	flags.StringVar(&f.selector, "kubernetes-selector", "", "watch jobs in pods with these labels, or in namespaces with them, such as psidecar.io/job=true; empty: all jobs")
}

// openPods returns nil where pods are not asked for. With it the agent names them, and hears
// what they say of their jobs.
func (f *podFlags) openPods(opts *agent.Options) (*pods.Pods, error) {
	if f.node == "" {
		f.node = os.Getenv("NODE_NAME")
	}
	switch {
	case !f.on && f.selector != "":
		return nil, cli.Usagef("--kubernetes-selector needs --kubernetes")
	case !f.on:
		return nil, nil
	case f.node == "":
		return nil, cli.Usagef("--kubernetes needs --kubernetes-node, or NODE_NAME in the environment (fieldRef: spec.nodeName)")
	}
	config, _, err := cluster()
	if err != nil {
		return nil, fmt.Errorf("--kubernetes: %w", err)
	}
	p, err := pods.New(config, f.node, f.selector, opts.Allowed)
	if err != nil {
		return nil, cli.Usagef("--kubernetes: %w", err)
	}
	if f.selector != "" || opts.Allowed[policy.Observe] {
		opts.Selects = p.Selected
	}
	opts.Said = p.Said
	opts.Pod = func(uid string) (page.Pod, bool) {
		pod, ok := p.Lookup(uid)
		return page.Pod{Namespace: pod.Namespace, Name: pod.Name, Node: pod.Node}, ok
	}
	return p, nil
}
