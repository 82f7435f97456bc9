package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/psidecar/psidecar/agent/fleet"
	"github.com/psidecar/psidecar/agent/web"
	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/reports"
)

func newPlannerCommand(_ env) *cobra.Command {
	var listen, page string
	cmd := &cobra.Command{
		Use:   "planner",
		Short: "Take in what the agents of all hosts report",
		Long: `Take in what the agents of all hosts report (psidecar agent --planner), and
show it as one: the page and the JSON interface as an agent has them, at --http.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runPlanner(cmd.Context(), listen, page) },
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:9811", "address at which agents report")
	cmd.Flags().StringVar(&page, "http", "127.0.0.1:9812", "address of the page and the interface; empty: none")
	return cmd
}

func runPlanner(ctx context.Context, listen, page string) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("--listen %s: %w", listen, err)
	}
	store := &reports.Store{}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(reports.MaxReportBytes))
	api.RegisterPlannerServer(server, store)
	g, ctx := errgroup.WithContext(ctx)
	if page != "" {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", page)
		if err != nil {
			return errors.Join(fmt.Errorf("--http %s: %w", page, err), listener.Close())
		}
		host, err := os.Hostname()
		if err != nil {
			return errors.Join(fmt.Errorf("asking for the host's name: %w", err), listener.Close(), l.Close())
		}
		state := &fleet.State{Version: version, Host: host, Started: time.Now(), Reports: store.All}
		g.Go(func() error { return serveHTTP(ctx, l, web.Handler(state, web.Options{Metrics: state.Metrics()})) })
		slog.Info("serving", "url", "http://"+l.Addr().String()+"/")
	}
	slog.Info("taking reports", "address", listener.Addr().String())
	g.Go(func() error {
		<-ctx.Done()
		server.Stop()
		return nil
	})
	g.Go(func() error {
		if err := server.Serve(listener); err != nil && ctx.Err() == nil {
			return fmt.Errorf("taking reports: %w", err)
		}
		return nil
	})
	return g.Wait()
}
