# Runs a command as on a host of its own, with $0 for a name: $1 is the cluster's folder, $2 the
# folder of the programs, and $3 those that are installed on the host.
set -e
folder=$1 programs=$2 installed=$3
shift 3
hostname "$0"
# The cluster's settings, in place of this machine's.
mount --bind "$folder/etc" /etc
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/munge
mount --bind "$folder/munge" /run/munge
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /usr/local/bin
for program in $installed; do
    touch "/usr/local/bin/$program"
    mount --bind "$programs/$program" "/usr/local/bin/$program"
done
exec "$@"
