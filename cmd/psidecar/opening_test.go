package main

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/psidecar/psidecar/internal/handshake"
	"github.com/psidecar/psidecar/internal/identity"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/test/certs"
)

// crowd opens connections that say no more than a few words.
func crowd(t *testing.T, address string, n int, words string) (all []net.Conn) {
	t.Helper()
	for len(all) < n {
		c, err := net.Dial("tcp", address)
		if errors.Is(err, syscall.ECONNRESET) {
			continue // it has made room for others before this side has looked
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		io.WriteString(c, words) // it may have been reset
		all = append(all, c)
	}
	return all
}

// isReset waits for the end of a connection and reports whether it was reset.
func isReset(t *testing.T, c net.Conn) bool {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(time.Minute))
	_, err := io.ReadAll(c)
	return errors.Is(err, syscall.ECONNRESET)
}

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
	ours := certs.New(t, "ours")
	mine := files(ours.Issue(t, t.TempDir(), "127.0.0.1", time.Now().Add(time.Hour), certs.Parts...))
	own, err := identity.Load(mine)
	if err != nil {
		t.Fatal(err)
	}
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
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			set := handshake.New(8, 4)
			server := grpc.NewServer(grpc.Creds(greeted{c.server}), grpc.ConnectionTimeout(time.Hour))
			api.RegisterPlansServer(server, quiet{})
			ended := make(chan error, 1)
			go func() { ended <- server.Serve(openings{l, set}) }()
			t.Cleanup(func() {
				server.Stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
			watch := func() grpc.ServerStreamingClient[api.PlanEvent] {
				conn, err := grpc.NewClient(l.Addr().String(), c.client)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				stream, err := api.NewPlansClient(conn).Watch(t.Context(), &api.WatchRequest{}, grpc.WaitForReady(true))
				if err == nil {
					_, err = stream.Recv()
				}
				if err != nil {
					t.Fatal(err)
				}
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

// A planner counts who has not said who it is.
func TestPlannerCountsSilentConnections(t *testing.T) {
	c, address := startPlanner(t, plannerFlags{})
	for end := time.Now().Add(time.Minute); c.opening.Size() == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no connection is waited for")
		}
		crowd(t, address, 1, "")
	}
	if _, ok := gathered(t, c.policy)["psidecar_planner_refused_callers_total silent"]; !ok {
		t.Error("those that are reset for others are not among the metrics")
	}
}

// A page's connections that ask for nothing, or do not come to the end of it, make
// room for others; one whose request is being answered does not.
func TestPageBesideSilentConnections(t *testing.T) {
	answering, answer := make(chan struct{}), make(chan struct{})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/slow") {
			close(answering)
			<-answer
		}
		io.WriteString(w, "answered")
	}))
	set := handshake.New(8, 4)
	bound(s.Config, set)
	s.Start()
	t.Cleanup(s.Close)
	get := func(path string) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
		if err != nil {
			return err
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := client.Do(request)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		_, err = io.ReadAll(r.Body)
		return err
	}
	slow := make(chan error, 1)
	go func() { slow <- get("/slow") }()
	<-answering
	address := s.Listener.Addr().String()
	for name, words := range map[string]string{"nothing": "", "half a head": "GET / HTTP/1.1\r\nHost: x\r\n", "a request before, and nothing since": "GET / HTTP/1.1\r\nHost: x\r\n\r\n"} {
		all := crowd(t, address, 50, words)
		for _, c := range all[:40] {
			c.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: one of the oldest goes on", name)
				break
			}
		}
		if n := set.Size(); n > 4 {
			t.Errorf("%s: %d connections are waited for", name, n)
		}
		if err := get("/"); err != nil {
			t.Errorf("%s: beside them: %v", name, err)
		}
	}
	close(answer)
	if err := <-slow; err != nil {
		t.Errorf("the request that took long: %v", err)
	}
}
