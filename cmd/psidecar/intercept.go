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
	flags.BoolVar(&f.On, "intercept", on, "send the connections of jobs to the host's proxy")
	flags.UintSliceVar(&f.Exclude, "intercept-exclude", nil, "ports whose connections are never intercepted")
	flags.BoolVar(&f.Adopt, "adopt", false, "have jobs' connections that went past the proxy, since it came later or was away, ended in order and made anew, each once")
	flags.StringVar(&f.Dir, "bpf-dir", daemon.DefaultDir, "folder in a BPF file system in which the redirecting programs are pinned")
}

// addHanding adds the flags of how a proxy in another process gets its listeners. psidecar up
// lacks them: its proxy is in the agent's process.
func addHanding(cmd *cobra.Command, f *daemon.InterceptSettings) {
	flags := cmd.Flags()
	flags.StringVar(&f.Socket, "proxy-socket", daemon.DefaultSocket, "unix socket at which the proxy gets its listeners")
	flags.IntVar(&f.UID, "proxy-uid", 0, "user that the proxy runs as; root and the agent's own are allowed too")
	flags.Uint16Var(&f.Mesh, "mesh-port", 9814, "the proxies' --mesh-port: opened for them in the network namespaces of jobs that are not the agent's, such as pods'; 0: not")
	flags.DurationVar(&f.Hang, "proxy-hang-after", 2*time.Second, "how long a proxy may leave the agent's questions unanswered before it is killed, so that whoever started it starts another; 0: it never is")
	flags.DurationVar(&f.Grace, "proxy-grace", 3*time.Second, "how long connections wait for another proxy when one has gone, before they go direct")
}

// addPods adds the flags of where an agent gets the names of pods from.
func addPods(cmd *cobra.Command, f *daemon.PodSettings) {
	flags := cmd.Flags()
	flags.BoolVar(&f.On, "kubernetes", false, "learn the names of this node's pods from the API server: of the cluster whose pod this is, or of KUBECONFIG")
	flags.StringVar(&f.Node, "kubernetes-node", "", "name of this node; default: NODE_NAME of the environment")
	flags.StringVar(&f.Selector, "kubernetes-selector", "", "watch jobs in pods with these labels, or in namespaces with them, such as psidecar.io/job=true; empty: all jobs")
}

// addExport adds the flags of what is sent to an OpenTelemetry collector.
func addExport(cmd *cobra.Command, f *daemon.ExportSettings) {
	cmd.Flags().StringVar(&f.Endpoint, "otlp-endpoint", "", "URL of an OpenTelemetry collector's gRPC port, such as http://collector:4317, to which metrics and slow requests, as spans, are sent; empty: as OTEL_EXPORTER_OTLP_ENDPOINT says, and where that is not set nothing is sent")
	cmd.Flags().DurationVar(&f.Slow, "otlp-slow", 100*time.Millisecond, "requests whose answers take that long or longer are sent as spans")
}
