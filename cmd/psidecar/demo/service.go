package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"
)

const (
	serviceStart = 20 * time.Second // until it is ready
	serviceStop  = 10 * time.Second // from SIGTERM to its end
)

// service is a psidecar process at work, with an address for its page.
type service struct {
	name   string
	url    string
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ended  chan error
}

// startService starts `psidecar ARGS --http ADDRESS` and waits until it is
// ready.
func startService(ctx context.Context, name, program string, args ...string) (*service, error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	s := &service{name: name, url: "http://" + address, ended: make(chan error, 1)}
	s.cmd = exec.Command(program, append(args, "--http", address)...)
	s.cmd.Stderr = &s.stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() { s.ended <- s.cmd.Wait() }()
	ctx, cancel := context.WithTimeout(ctx, serviceStart)
	defer cancel()
	for {
		err := s.get(ctx, "/readyz", nil)
		if err == nil {
			return s, nil
		}
		select {
		case end := <-s.ended:
			return nil, fmt.Errorf("%s ended (%w):\n%s", name, end, s.stderr.Bytes())
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("%s does not get ready: %w", name, err), s.stop())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// freeAddress returns an address of this machine that nobody listens at.
func freeAddress(ctx context.Context) (string, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err == nil {
		err = l.Close()
	}
	if err != nil {
		return "", fmt.Errorf("looking for a free port: %w", err)
	}
	return l.Addr().String(), nil
}

// get asks the service, and decodes its answer into v where that is not nil.
func (s *service) get(ctx context.Context, path string, v any) (err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("asking %s: %w", s.name, err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("asking %s for %s: %s", s.name, path, response.Status)
	}
	if v == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(v)
}

// stop ends the service in order, or by force where that takes too long.
func (s *service) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", s.name, err)
	}
	select {
	case err := <-s.ended:
		if err != nil {
			return fmt.Errorf("%s ended (%w):\n%s", s.name, err, s.stderr.Bytes())
		}
		return nil
	case <-time.After(serviceStop):
		return errors.Join(fmt.Errorf("%s did not end on SIGTERM", s.name), s.cmd.Process.Kill())
	}
}
