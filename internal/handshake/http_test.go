package handshake

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/require"
)

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
	set := New(8, 4)
	BoundHTTP(s.Config, set)
	s.Start()
	t.Cleanup(s.Close)
	get := func(path string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
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
		// Which of them go on is a matter of when each was answered.
		var ended atomic.Int32
		for _, c := range all {
			go func() {
				io.Copy(io.Discard, c)
				ended.Add(1)
			}()
		}
		require.Await(t, name+": 46 of 50 connections end", func() error {
			if n := ended.Load(); n < 46 {
				return fmt.Errorf("%d have ended", n)
			}
			return nil
		})
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

// A connection counts once, whatever it asks for.
func TestPageCountsConnectionsOnce(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "answered") }))
	set := New(64, 32)
	BoundHTTP(s.Config, set)
	s.Start()
	t.Cleanup(s.Close)
	c := require.Value(net.Dial("tcp", s.Listener.Addr().String()))(t)
	defer c.Close()
	answers := bufio.NewReader(c)
	for range 10 {
		require.Value(io.WriteString(c, "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"))(t)
		r := require.Value(http.ReadResponse(answers, nil))(t)
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
	if n := set.Size(); n > 1 {
		t.Errorf("one connection counts as %d", n)
	}
}
