package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/identity"
)

// newCertsCommand returns psidecar certs. It works in one folder, without a network or root.
// All arguments are read before the first file is written; if writing fails half way, running
// it again completes the folder, since an authority that exists is used again.
func newCertsCommand(e env) *cobra.Command {
	var out string
	var hosts, planners, operators, roles []string
	var anyHost bool
	var secrets certSecrets
	var valid, authority time.Duration
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Issue certificates for hosts, planners and operators",
		Long: `Issue certificates for links between hosts and for the planner, if you have no CA
for this. The command creates a CA in --out (ca.crt, ca.key) unless one exists,
and a directory with tls.crt, tls.key and ca.crt for each --host (NAME),
--planner (planner-NAME) and --operator (operator-NAME). Run it again to renew:
psidecar reloads changed files. Keep ca.key off the hosts.

URIs in a certificate, such as psidecar://proxy/node1, define its roles: a host's
agent and proxy, valid for that host only; a planner; an operator, who may apply
plans and set rules. Certificates from earlier versions have no role and are
refused: run this command again with the same names. --role changes the roles of
host certificates: agent and proxy may have one certificate each; psidecar up with
its own planner needs agent,proxy,planner. deploy/SECURITY.md describes the
permissions of each role.

  psidecar certs --out ca --host node1,10.0.0.1 --host node2,10.0.0.2 \
    --planner planner.example --operator alice

In Kubernetes the chart makes certificates itself, by --secret, unless it is given
others. One of all agents, and one of all proxies:

  psidecar certs --out ca --any-host --role agent --host psidecar-agent
  psidecar certs --out ca --any-host --role proxy --host psidecar-proxy
  psidecar certs --out ca --planner psidecar-planner.NAMESPACE.svc
  kubectl create secret generic psidecar-tls-agent --from-file=ca/psidecar-agent`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case out == "":
				return cli.Usagef("--out is required: name the output directory")
			case len(hosts)+len(planners)+len(operators) == 0:
				return cli.Usagef("nothing to issue: set --host, --planner or --operator, once per certificate, with the names of a host or planner separated by commas")
			case valid <= 0 || authority <= 0:
				return cli.Usagef("--valid and --ca-valid: want durations above 0")
			case (secrets.ca == "") != (secrets.cert == ""):
				return cli.Usagef("--secret and --ca-secret: set both, or neither")
			case secrets.cert != "" && len(hosts)+len(planners)+len(operators) > 1:
				return cli.Usagef("--secret holds one certificate: set one --host, --planner or --operator")
			}
			// An authority without certificates is of no use, so names are checked before one
			// is made.
			all, err := identity.ParseSubjects(hosts, planners, operators, roles, anyHost)
			if err != nil {
				return cli.UsageError{Err: err}
			}
			if secrets.cert != "" {
				said, err := secrets.issue(cmd.Context(), out, all[0], valid, authority)
				if err == nil {
					fmt.Fprintln(e.stdout, said)
				}
				return err
			}
			ca, err := identity.OpenAuthority(out, authority)
			if err != nil {
				return fmt.Errorf("--out %s: %w", out, err)
			}
			if ca.Made {
				fmt.Fprintf(e.stdout, "%s: new CA, valid for %s\n", filepath.Join(out, identity.CAFile), authority)
			}
			for _, s := range all {
				// Every subject gets a key of its own. ca.key alone is shared, and stays in
				// out.
				dir := filepath.Join(out, s.Folder)
				if err := ca.Issue(dir, s.Names, s.Grants, valid); err != nil {
					return fmt.Errorf("%s: %w", s.Folder, err)
				}
				fmt.Fprintf(e.stdout, "%s: for %s, as %s, valid for %s\n", dir, strings.Join(s.Names, ", "), s.Grants, valid)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&secrets.cert, "secret", "", "in Kubernetes: Secret in which to keep the one certificate; what is there stays while it is valid for a third of --valid. The chart's jobs use this")
	cmd.Flags().StringVar(&secrets.ca, "ca-secret", "", "with --secret: Secret in which to keep the CA and its key; made if there is none")
	cmd.Flags().StringVar(&out, "out", "", "output directory for the CA and the certificates")
	cmd.Flags().StringArrayVar(&hosts, "host", nil, "host certificate to issue: NAME[,NAME...], the host and further names and addresses; may be repeated")
	cmd.Flags().StringArrayVar(&planners, "planner", nil, "planner certificate to issue: NAME[,NAME...], the names and addresses of the planner; may be repeated")
	cmd.Flags().StringArrayVar(&operators, "operator", nil, "operator certificate to issue: NAME of a person who may apply plans and set rules; may be repeated")
	cmd.Flags().StringSliceVar(&roles, "role", identity.HostRoles, "roles of the --host certificates: agent, proxy, planner")
	cmd.Flags().BoolVar(&anyHost, "any-host", false, "make the --host certificates valid for agents and proxies of any host, so that many hosts can share one")
	cmd.Flags().DurationVar(&valid, "valid", 365*24*time.Hour, "validity of the certificates")
	cmd.Flags().DurationVar(&authority, "ca-valid", 10*365*24*time.Hour, "validity of a new CA")
	return cmd
}
