package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	core "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// How the Lease is held.
const (
	// leaseFor is how long after the last renewal of a planner that has died another one takes
	// over. A planner that ends in order gives the Lease back, and the next one takes over at once.
	leaseFor = 8 * time.Second
	// renewFor is after how long without a renewal the leader gives up. It is shorter than
	// leaseFor, so that the old leader stops before the next one starts, whatever their clocks say.
	renewFor   = 5 * time.Second
	renewEvery = 1 * time.Second
)

// requestTimeout bounds one request for an object.
const requestTimeout = 5 * time.Second

// ErrLeadLost is returned by a leader that had to give up: another planner has the Lease, or the
// API server could not be reached.
var ErrLeadLost = errors.New("the lead is lost: the Lease could not be renewed")

// A Campaign is one process's part in the election among the planners of one store.
type Campaign struct {
	Namespace string
	// Lease is the name of the Lease, and of the store's root object.
	Lease string
	// Identity is this process's name in the Lease; no other process may have it.
	Identity string
	Config   *rest.Config
	// Following, if not nil, is called with the identity of the leader whenever it changes, in a
	// goroutine of its own.
	Following func(leader string)
}

// Run waits for the Lease, opens the store and calls lead, whose context ends when ctx ends or the
// lead is lost. It returns lead's error, or ErrLeadLost if lead returned nil although ctx goes on.
// The Lease is kept until lead has returned, so that no successor starts while lead still works. If
// ctx ends before this process had the lead, Run returns nil.
func (c *Campaign) Run(ctx context.Context, lead func(context.Context, *KubeStore) error) error {
	config := rest.CopyConfig(c.Config)
	config.Timeout = requestTimeout
	config.QPS = -1 // one writer that waits for each answer needs no limit
	config.ContentType, config.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json"
	objects, err := core.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connecting to the API server: %w", err)
	}
	leases, err := coordination.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connecting to the API server: %w", err)
	}
	// The election outlives ctx, until lead has returned.
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(slog.Default().Handler()))
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	turn := make(chan struct{})
	ended := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Lease},
			Client:     leases,
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.Identity},
		},
		Name:          c.Lease,
		LeaseDuration: leaseFor, RenewDeadline: renewFor, RetryPeriod: renewEvery,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(held context.Context) {
				defer stop()
				close(turn)
				held, cancel := context.WithCancel(held)
				defer cancel()
				// The election's own context does not end with ctx; lead's does.
				defer context.AfterFunc(ctx, cancel)()
				ended <- c.lead(held, objects.ConfigMaps(c.Namespace), leases.Leases(c.Namespace), lead)
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				if c.Following != nil {
					c.Following(identity)
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("taking part in the election by Lease %s: %w", c.Lease, err)
	}
	go func() { // while there is no lead, the end of ctx ends the election
		select {
		case <-electing.Done():
		case <-turn:
		case <-ctx.Done():
			stop()
		}
	}()
	elector.Run(electing)
	if !elected(turn) {
		return nil
	}
	err = <-ended
	if err == nil && ctx.Err() == nil {
		return fmt.Errorf("lease %s/%s: %w", c.Namespace, c.Lease, ErrLeadLost)
	}
	return err
}

// elected reports whether turn was closed: this process has had the lead.
func elected(turn chan struct{}) bool {
	select {
	case <-turn:
		return true
	default:
		return false
	}
}

// lead opens the store and calls lead with it, while the Lease is this planner's. The store asks
// for the Lease again during a takeover: a planner that has lost it without noticing must not
// overwrite its successor's pages.
func (c *Campaign) lead(ctx context.Context, objects Objects, leases coordination.LeaseInterface, lead func(context.Context, *KubeStore) error) (err error) {
	s, err := OpenKube(ctx, objects, c.Lease, func(ctx context.Context) (int64, error) {
		lease, err := leases.Get(ctx, c.Lease, metav1.GetOptions{})
		if err != nil {
			return 0, fmt.Errorf("reading Lease %s: %w", c.Lease, err)
		}
		if holder := lease.Spec.HolderIdentity; holder == nil || *holder != c.Identity {
			return 0, fmt.Errorf("lease %s is not this planner's any more", c.Lease)
		}
		if lease.Spec.LeaseTransitions == nil {
			return 0, nil
		}
		return int64(*lease.Spec.LeaseTransitions), nil
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return lead(ctx, s)
}
