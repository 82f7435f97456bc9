package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/agent/daemon"
)

// addIntercepting adds the flags that select connections to redirect; on is the default of
// --intercept. psidecar agent and up have them.
func addIntercepting(cmd *cobra.Command, f *daemon.InterceptSettings, on bool) {
	flags := cmd.Flags()
	flags.BoolVar(&f.On, "intercept", on, "redirect the jobs' connections to the host's proxy")
	flags.UintSliceVar(&f.Exclude, "intercept-exclude", nil, "destination ports that are never intercepted")
	flags.BoolVar(&f.Adopt, "adopt", false, "gracefully close job connections that bypass the proxy because it started later or was away, once each, so that they reconnect through it")
	flags.StringVar(&f.Dir, "bpf-dir", daemon.DefaultDir, "directory in a BPF file system in which the redirect programs are pinned")
}

// addHanding adds the flags of how a proxy in another process gets its listeners. psidecar up
// lacks them: its proxy is in the agent's process.
func addHanding(cmd *cobra.Command, f *daemon.InterceptSettings) {
	flags := cmd.Flags()
	flags.StringVar(&f.Socket, "proxy-socket", daemon.DefaultSocket, "Unix socket over which the proxy receives its listeners")
	flags.IntVar(&f.UID, "proxy-uid", 0, "UID of the proxy; root and the agent's own UID are also allowed")
	flags.Uint16Var(&f.Mesh, "mesh-port", 9814, "mesh port of the proxies (their --mesh-port), opened for them in network namespaces of jobs other than the agent's, such as those of pods; 0: disabled")
	flags.DurationVar(&f.Hang, "proxy-hang-after", 2*time.Second, "kill the proxy if it does not answer the agent's pings for this long, so that its supervisor restarts it; 0: never")
	flags.DurationVar(&f.Grace, "proxy-grace", 3*time.Second, "how long new connections wait for the next proxy after one has exited, before they go direct")
}

// addPods adds the flags of where an agent gets the names of pods from.
func addPods(cmd *cobra.Command, f *daemon.PodSettings) {
	flags := cmd.Flags()
	flags.BoolVar(&f.On, "kubernetes", false, "read the names of this node's pods from the Kubernetes API server (in-cluster configuration or KUBECONFIG)")
	flags.StringVar(&f.Node, "kubernetes-node", "", "name of this node (default: NODE_NAME from the environment)")
	flags.StringVar(&f.Selector, "kubernetes-selector", "", "label selector of the pods or namespaces whose jobs are watched, such as psidecar.io/job=true; empty: all jobs")
}
