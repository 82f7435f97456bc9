package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/agent/daemon"
	"github.com/psidecar/psidecar/bpf/redirect"
	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/proxy/handover"
)

// interceptFlags are what whoever has jobs' connections intercepted can be
// told.
type interceptFlags struct {
	on      bool
	dir     string
	socket  string // empty: the proxy is in this process
	uid     int
	grace   time.Duration
	hang    time.Duration
	mesh    uint16 // port; 0: none
	exclude []uint
	adopt   bool
}

// intercepting has the flags of what is redirected.
func (f *interceptFlags) intercepting(cmd *cobra.Command, on bool) {
	flags := cmd.Flags()
	flags.BoolVar(&f.on, "intercept", on, "send the connections of jobs to the host's proxy")
	flags.UintSliceVar(&f.exclude, "intercept-exclude", nil, "ports whose connections are never intercepted")
	flags.BoolVar(&f.adopt, "adopt", false, "have jobs' connections that went past the proxy, since it came later or was away, ended in order and made anew, each once")
	flags.StringVar(&f.dir, "bpf-dir", redirect.DefaultDir, "folder in a BPF file system in which the redirecting programs are pinned")
}

// handing has the flags of how a proxy in another process gets its listeners.
func (f *interceptFlags) handing(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.socket, "proxy-socket", handover.DefaultSocket, "unix socket at which the proxy gets its listeners")
	flags.IntVar(&f.uid, "proxy-uid", 0, "user that the proxy runs as; root and the agent's own are allowed too")
	flags.Uint16Var(&f.mesh, "mesh-port", 9814, "the proxies' --mesh-port: opened for them in the network namespaces of jobs that are not the agent's, such as pods'; 0: not")
	flags.DurationVar(&f.hang, "proxy-hang-after", 2*time.Second, "how long a proxy may leave the agent's questions unanswered before it is killed, so that whoever started it starts another; 0: it never is")
	flags.DurationVar(&f.grace, "proxy-grace", 3*time.Second, "how long connections wait for another proxy when one has gone, before they go direct")
}

// open has connects redirected from when an agent runs with it; nil where they are
// not to be.
func (f *interceptFlags) open() (*daemon.Interception, error) {
	if !f.on {
		return nil, nil
	}
	o := daemon.InterceptOptions{Dir: f.dir, Socket: f.socket, UID: f.uid, Grace: f.grace, HangAfter: f.hang, MeshPort: f.mesh, Adopt: f.adopt}
	for _, port := range f.exclude {
		if port == 0 || port > 65535 {
			return nil, cli.Usagef("--intercept-exclude %d: want ports, 1 to 65535", port)
		}
		o.Exclude = append(o.Exclude, uint16(port))
	}
	i, err := daemon.Intercept(o)
	if err != nil {
		return nil, fmt.Errorf("--intercept: %w", err)
	}
	return i, nil
}
