package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
)

const (
	serviceStart = 20 * time.Second // until it is ready
	serviceStop  = 20 * time.Second // from SIGTERM to its end
)

// service is a psidecar process on a host, with its HTTP port.
type service struct {
	name    string
	address string // host:port, as the hosts reach it
	client  *http.Client
	control string // unix socket of a proxy for orders
	process *hosts.Process
	stderr  bytes.Buffer
}

// startService starts `psidecar ARGS --http ADDRESS` on a host, outside the job's cgroup, and
// waits until it is ready. Its output is kept for errors.
func startService(ctx context.Context, h *hosts.Host, port int, program string, args ...string) (*service, error) {
	s := &service{name: fmt.Sprintf("psidecar %s on %s", args[0], h.Name), address: hostPort(h, port)}
	s.client = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return h.Dial(ctx, network, address)
		},
		// A connection that stays open would belong to a namespace that is removed at the end.
		DisableKeepAlives: true,
	}}
	cmd := exec.Command(program, append(args, "--http", s.address)...)
	cmd.Stderr = &s.stderr
	var err error
	if s.process, err = h.StartIn(psidecarGroup, cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", s.name, err)
	}
	if err := s.await(ctx, func(ctx context.Context) error { return s.get(ctx, "/readyz", nil) }); err != nil {
		// It may be running and merely slow, and nobody else knows of it yet.
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// hostPort returns the address of a port of a host.
func hostPort(h *hosts.Host, port int) string {
	return net.JoinHostPort(h.IPv4.String(), strconv.Itoa(port))
}

// await polls ready until it returns nil, the process ends, or serviceStart is over.
func (s *service) await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, serviceStart)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.process.Done():
			return fmt.Errorf("%s ended:\n%s", s.name, s.stderr.Bytes())
		case <-ctx.Done():
			return fmt.Errorf("%s does not get ready: %w", s.name, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// get requests a path and decodes the JSON answer into v, unless v is nil.
func (s *service) get(ctx context.Context, path string, v any) error {
	body, err := s.read(ctx, path)
	if err != nil || v == nil {
		return err
	}
	return json.Unmarshal(body, v)
}

// read requests a path and returns the body of the answer, which must be 200.
func (s *service) read(ctx context.Context, path string) (body []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+path, nil)
	if err != nil {
		return nil, err
	}
	response, err := s.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", s.name, err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking %s for %s: %s", s.name, path, response.Status)
	}
	return io.ReadAll(response.Body)
}

// metric returns the value of a metric without labels, 0 if there is none.
func (s *service) metric(ctx context.Context, name string) (float64, error) {
	body, err := s.read(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, nil
}

// stop ends the service by SIGTERM, or by SIGKILL if that takes too long, which is an error.
func (s *service) stop() error {
	// Not the caller's context: that may have ended, and services must be stopped all the same.
	ctx, cancel := context.WithTimeout(context.Background(), serviceStop)
	defer cancel()
	if err := s.process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stopping %s: %w", s.name, err)
	}
	if err := s.process.Wait(ctx); err != nil {
		return errors.Join(fmt.Errorf("%s ended (%w):\n%s", s.name, err, s.stderr.Bytes()), s.process.Kill())
	}
	return nil
}

// stopAll stops services concurrently and clears the list.
func stopAll(services *[]*service) error {
	errs := make([]error, len(*services))
	var all sync.WaitGroup
	for i, s := range *services {
		if s != nil { // it did not start
			all.Go(func() { errs[i] = s.stop() })
		}
	}
	all.Wait()
	*services = nil
	return errors.Join(errs...)
}
