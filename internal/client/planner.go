package client

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/internal/cli"
	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/planner/api"
)

const (
	// LocalPlanner is the default of --planner of the commands that ask one: it
	// stands for the unix socket, where there is one, and else the address.
	LocalPlanner = "local"
	// PlannerSocket is where a planner on this host takes calls, by default.
	PlannerSocket  = api.DefaultSocket
	PlannerAddress = "127.0.0.1:9811"
)

// A Planner says how a planner is reached: without TLS, or with certificates
// on both sides.
type Planner struct {
	Address string // host:port, unix:PATH, or [LocalPlanner]
	Name    string // in the planner's certificate; empty: the address's host
	Files   identity.Files
	// Own is the identity of a planner in this process, which is reached with
	// its own certificate.
	Own *identity.Identity
}

// CheckPlanner returns a usage error for an address that no planner can have; an empty one and
// [LocalPlanner] are none.
func CheckPlanner(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	switch {
	case address == "" || address == LocalPlanner || strings.HasPrefix(address, "unix:"):
		return nil
	case strings.Contains(address, "://"):
		return cli.Usagef("--planner %q: want host:port of its --listen address (%s by default), without a scheme", address, PlannerAddress)
	case err == nil && host != "" && port != "":
		return nil
	}
	return cli.Usagef("--planner %q: want host:port, such as planner-host:9811", address)
}

// Credentials returns what gRPC needs to reach the planner.
func (l *Planner) Credentials() (credentials.TransportCredentials, error) {
	if l.Own != nil {
		return identity.ClientCredentials(l.Own, "", false), nil
	}
	i, err := IdentityOf(l.Files, "--planner-")
	switch {
	case err != nil:
		return nil, err
	case i == nil && l.Name != "":
		return nil, cli.Usagef("--planner-name needs --planner-ca, --planner-cert and --planner-key")
	case i == nil || strings.HasPrefix(l.Address, "unix:"):
		return insecure.NewCredentials(), nil
	}
	name := l.Name
	if name == "" {
		if name, _, err = net.SplitHostPort(l.Address); err != nil {
			return nil, cli.Usagef("--planner %q: want host:port: %w", l.Address, err)
		}
	}
	return identity.ClientCredentials(i, name, l.Name == ""), nil
}

// target returns where the planner is: of commands that people give, by default,
// at its unix socket on this host where there is one.
func (l *Planner) target() string {
	if l.Address != LocalPlanner {
		return l.Address
	}
	if info, err := os.Stat(PlannerSocket); err == nil && info.Mode()&os.ModeSocket != 0 {
		return "unix:" + PlannerSocket
	}
	return PlannerAddress
}

// IdentityOf reads the files that the flags PREFIXca, PREFIXcert and PREFIXkey
// name; nil where none is given.
func IdentityOf(f identity.Files, prefix string) (*identity.Identity, error) {
	if f.CA == "" && f.Cert == "" && f.Key == "" {
		return nil, nil
	}
	names := fmt.Sprintf("%[1]sca, %[1]scert and %[1]skey", prefix)
	if f.CA == "" || f.Cert == "" || f.Key == "" {
		return nil, cli.Usagef("%s go together", names)
	}
	i, err := identity.Load(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", names, err)
	}
	return i, nil
}

// Call calls do with a connection to the planner. An error of gRPC's is said in words.
func (l *Planner) Call(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) error {
	at := *l
	at.Address = l.target()
	creds, err := at.Credentials()
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(at.Address, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return cli.Usagef("--planner %q: %w", at.Address, err)
	}
	defer conn.Close()
	if err := do(ctx, conn); err != nil {
		if s, ok := status.FromError(err); ok {
			return fmt.Errorf("planner %s: %s", at.Address, PlannerProblem(at.Address, s.Message()))
		}
		return err
	}
	return nil
}

// CallPlans calls do with a client of the planner's plans.
func (l *Planner) CallPlans(ctx context.Context, do func(context.Context, api.PlansClient) error) error {
	return l.Call(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return do(ctx, api.NewPlansClient(conn))
	})
}

// CallCodecs calls do with a client of the planner's rules for values.
func (l *Planner) CallCodecs(ctx context.Context, do func(context.Context, api.CodecsClient) error) error {
	return l.Call(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return do(ctx, api.NewCodecsClient(conn))
	})
}
