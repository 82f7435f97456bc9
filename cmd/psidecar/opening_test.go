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
	"google.golang.org/grpc/credentials/insecure"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/proxy/handshake"
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

// Connections to a planner that do not say who they are, before TLS or instead of
// an HTTP/2 client's first words, are bounded by number, and keep nobody out.
func TestPlannerBesideSilentConnections(t *testing.T) {
	for name, words := range map[string]string{"nothing": "", "half a preface": "PRI * HTTP"} {
		t.Run(name, func(t *testing.T) {
			var flags plannerFlags
			var args []string
			if words == "" {
				ours := certs.New(t, "ours")
				mine := ours.Issue(t, t.TempDir(), "127.0.0.1", time.Now().Add(time.Hour), append(certs.Parts, "psidecar://planner/127.0.0.1")...)
				flags.tls = files(mine)
				args = []string{"--planner-ca", mine.CA, "--planner-cert", mine.Cert, "--planner-key", mine.Key}
			}
			c, address := startPlanner(t, flags)
			const more = 100
			all := crowd(t, address, plannerOpeningsPerSource+more, words)
			for _, c := range all[:more/2] {
				if !isReset(t, c) {
					t.Fatal("one of the oldest was not reset")
				}
			}
			if code, _, stderr := runTest(t, nil, append([]string{"plan", "show", "--planner", address}, args...)...); code != 0 {
				t.Errorf("beside them: exit code %d, %s", code, stderr)
			}
			if n := gathered(t, c.policy)["psidecar_planner_refused_callers_total silent"]; n < more {
				t.Errorf("%v are counted as silent, want %d", n, more)
			}
		})
	}
}

// A call's connection counts no more once it has said what it wants: it stays
// however many come.
func TestCallsStayBesideSilentConnections(t *testing.T) {
	c, address := startPlanner(t, plannerFlags{})
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	stream, err := api.NewPlansClient(conn).Watch(t.Context(), &api.WatchRequest{Host: "h"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	crowd(t, address, plannerOpeningsPerSource+100, "")
	ended := make(chan error, 1)
	go func() { _, err := stream.Recv(); ended <- err }()
	for end := time.Now().Add(time.Minute); gathered(t, c.policy)["psidecar_planner_refused_callers_total silent"] < 100; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the oldest were not reset")
		}
	}
	select {
	case err := <-ended:
		t.Errorf("the call ended: %v", err)
	default:
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
