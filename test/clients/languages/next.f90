! next WAY PATH N SIZE: reads PATH N times and prints what it got.
program next
  use iso_fortran_env, only: int8, error_unit
  implicit none
  character(4096) :: way, path, text
  character(200) :: message
  integer(int8), allocatable :: batch(:)
  integer :: n, size, i, in, out, status

  call get_command_argument(1, way)
  call get_command_argument(2, path)
  call get_command_argument(3, text)
  read (text, *) n
  call get_command_argument(4, text)
  read (text, *) size
  allocate (batch(size), source=0_int8)

  open (newunit=out, file='/dev/stdout', access='stream', form='unformatted', action='write')
  do i = 1, n
    if (i == 1 .or. way == 'stream' .or. way == 'direct') then
      if (way == 'direct') then
        open (newunit=in, file=path, access='direct', form='unformatted', recl=size, action='read', status='old', &
              iostat=status, iomsg=message)
      else
        open (newunit=in, file=path, access='stream', form='unformatted', action='read', status='old', &
              iostat=status, iomsg=message)
      end if
      call check
    end if
    select case (way)
    case ('direct')
      read (in, rec=1, iostat=status, iomsg=message) batch
    case ('rewind')
      rewind (in)
      read (in, iostat=status, iomsg=message) batch
    case default
      read (in, pos=1, iostat=status, iomsg=message) batch
    end select
    call check
    write (out) batch
    if (way == 'stream' .or. way == 'direct') close (in)
  end do
contains
  subroutine check
    if (status /= 0) then
      write (error_unit, *) trim(message)
      error stop 1
    end if
  end subroutine
end program
