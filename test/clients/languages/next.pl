# next.pl WAY PATH N SIZE: reads PATH N times and prints what it got.
use strict;
use warnings;
use Fcntl;

my ($way, $path, $n, $size) = @ARGV;

sub opened {
    my ($flags) = @_;
    sysopen(my $f, $path, $flags // O_RDONLY) or die "$path: $!\n";
    binmode $f;
    return $f;
}

# Each way returns a function that returns the next batch.
my %ways = (
    slurp => sub { sub {
        my $f = opened();
        local $/;
        my $batch = <$f>;
        close $f or die "$path: $!\n";
        return $batch;
    } },
    read => sub { sub { read(opened(), my $batch, $size) // die "$path: $!\n"; return $batch } },
    sysread => sub { sub { sysread(opened(), my $batch, $size) // die "$path: $!\n"; return $batch } },
    nonblock => sub { sub { sysread(opened(O_RDONLY | O_NONBLOCK), my $batch, $size) // die "$path: $!\n"; return $batch } },
    seek => sub {
        my $f = opened();
        return sub { seek($f, 0, 0); read($f, my $batch, $size) // die "$path: $!\n"; return $batch };
    },
    sysseek => sub {
        my $f = opened();
        return sub { sysseek($f, 0, 0); sysread($f, my $batch, $size) // die "$path: $!\n"; return $batch };
    },
    unchecked => sub { sub { my $f = opened(); local $/; return <$f> // '' } },
);
binmode STDOUT;
my $next = $ways{$way}->();
print $next->() for 1 .. $n;
close STDOUT or die "$!\n";
