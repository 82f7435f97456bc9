package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/cmd/psidecar/certificates"
)

func newCertsCommand(e env) *cobra.Command {
	var out string
	var hosts []string
	var valid, authority time.Duration
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Make certificates for the links between hosts",
		Long: `Make certificates for the links between hosts, and to the planner, where there
is no authority that does: an authority in --out (ca.crt, ca.key), unless there
is one already, and for each --host a folder with tls.crt, tls.key and ca.crt.
Run it again to renew: psidecar reads changed files by itself. Keep ca.key from
the hosts.

A host may have several names: --host node1,10.0.0.1,planner.example. In
Kubernetes one certificate serves all:

  psidecar certs --out ca --host psidecar.NAMESPACE.svc,psidecar-planner.NAMESPACE.svc
  kubectl create secret generic psidecar-tls --from-file=ca/psidecar.NAMESPACE.svc`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			switch {
			case out == "":
				return usagef("--out: which folder?")
			case len(hosts) == 0:
				return usagef("--host: which hosts? Say it once for each, with its names separated by commas")
			case valid <= 0 || authority <= 0:
				return usagef("--valid and --ca-valid: want durations above 0")
			}
			ca, err := certificates.Open(out, authority)
			if err != nil {
				return fmt.Errorf("--out %s: %w", out, err)
			}
			if ca.Made {
				fmt.Fprintf(e.stdout, "%s: a new authority, valid for %s\n", filepath.Join(out, certificates.CAFile), authority)
			}
			for _, host := range hosts {
				names := strings.Split(host, ",")
				dir := filepath.Join(out, names[0])
				if names[0] == "" || filepath.Base(names[0]) != names[0] {
					return usagef("--host %q: want names, separated by commas", host)
				}
				if err := ca.Issue(dir, names, valid); err != nil {
					return fmt.Errorf("--host %s: %w", host, err)
				}
				fmt.Fprintf(e.stdout, "%s: for %s, valid for %s\n", dir, strings.Join(names, ", "), valid)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "folder for the authority and the certificates")
	cmd.Flags().StringArrayVar(&hosts, "host", nil, "NAME[,NAME...]: a host and the names and addresses of its certificate; can be repeated")
	cmd.Flags().DurationVar(&valid, "valid", 365*24*time.Hour, "how long the hosts' certificates are valid")
	cmd.Flags().DurationVar(&authority, "ca-valid", 10*365*24*time.Hour, "how long a new authority is valid")
	return cmd
}
