package handshake

import (
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/certs"
	"github.com/psidecar/psidecar/test/require"
)

// quiet serves plans, of which there are none.
type quiet struct{ api.UnimplementedPlansServer }

func (quiet) Watch(_ *api.WatchRequest, stream grpc.ServerStreamingServer[api.PlanEvent]) error {
	if err := stream.Send(&api.PlanEvent{}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// Connections that do not say who they are, before TLS or instead of an HTTP/2
// client's first words, are bounded by number, and keep nobody out. One that has
// said so stays, however many come after it.
func TestCallsBesideSilentConnections(t *testing.T) {
	ours := certs.NewAuthority(t, "ours")
	mine := ours.Issue(t, t.TempDir(), "127.0.0.1", time.Now().Add(time.Hour), certs.Parts...)
	own := require.Value(identity.Load(identity.Files{Cert: mine.Cert, Key: mine.Key, CA: mine.CA}))(t)
	for name, c := range map[string]struct {
		server credentials.TransportCredentials
		client grpc.DialOption
		words  string
	}{
		"before TLS":           {identity.ServerCredentials(own), grpc.WithTransportCredentials(identity.ClientCredentials(own, "", false)), ""},
		"nothing, without TLS": {insecure.NewCredentials(), grpc.WithTransportCredentials(insecure.NewCredentials()), ""},
		"half of a first word": {insecure.NewCredentials(), grpc.WithTransportCredentials(insecure.NewCredentials()), "PRI * HTTP"},
	} {
		t.Run(name, func(t *testing.T) {
			l := require.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
			set := New(8, 4)
			server := grpc.NewServer(grpc.Creds(Credentials{c.server}), grpc.ConnectionTimeout(time.Hour))
			api.RegisterPlansServer(server, quiet{})
			ended := make(chan error, 1)
			go func() { ended <- server.Serve(Listener{l, set}) }()
			t.Cleanup(func() {
				server.Stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
			watch := func() grpc.ServerStreamingClient[api.PlanEvent] {
				conn := require.Value(grpc.NewClient(l.Addr().String(), c.client))(t)
				t.Cleanup(func() { conn.Close() })
				stream, err := api.NewPlansClient(conn).Watch(t.Context(), &api.WatchRequest{}, grpc.WaitForReady(true))
				if err == nil {
					_, err = stream.Recv()
				}
				require.NoError(t, err)
				return stream
			}
			early := watch()
			all := crowd(t, l.Addr().String(), 50, c.words)
			for _, c := range all[:40] {
				if !isReset(t, c) {
					t.Fatal("one of the oldest was not reset")
				}
			}
			watch()
			if n := set.Size(); n > 4 || set.Dropped() < 40 {
				t.Errorf("%d connections are waited for, %d were reset", n, set.Dropped())
			}
			over := make(chan error, 1)
			go func() { _, err := early.Recv(); over <- err }()
			select {
			case err := <-over:
				t.Errorf("the call before them ended: %v", err)
			case <-time.After(10 * time.Millisecond):
			}
		})
	}
}
